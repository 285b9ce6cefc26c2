"""Instruments around SmartGen: shaped networks, servers inside them, measuring rules.

Never imported by `smartgen`. Each package below is used by the benchmarks and by `test/lab`.
"""
