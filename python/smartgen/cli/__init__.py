"""The `smartgen` command. Each command is one module; this package joins model, launch, client."""

from smartgen.cli.app import app, main

__all__ = ["app", "main"]
