"""The `smartgen bench` commands. Found by the command line through the entry point group `smartgen.commands`."""

from smartgen_lab.bench.app import app

__all__ = ["app"]
