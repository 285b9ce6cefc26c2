"""`smartgen bench accuracy`: what every way of choosing blocks costs in quality, and in bytes.

Runs the product's operators, selectors, budgets and profile (`smartgen.profiler`), on prompts that shaped no profile.
"""
