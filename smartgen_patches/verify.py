"""Checks that the installed SGLang and its hook targets are the ones this seam was written for.

`register()` calls `refuse_unless_verified()` before anything is hooked; `python -m
smartgen_patches.verify` prints the same findings, one line each, and exits 0 or 1.
"""

import importlib
import inspect
import pkgutil
import sys
from importlib import metadata

from smartgen_patches.errors import StartRefused
from smartgen_patches.hooks import HOOKS, Hook

SGLANG_VERSION = "0.5.23"


def problems() -> list[str]:
    """One sentence for each thing that is not as expected; empty when all is well."""
    version = _version_problem()
    if version is not None:
        return [version]
    return [problem for hook in HOOKS if (problem := _hook_problem(hook)) is not None]


def refuse_unless_verified() -> None:
    """Raise StartRefused with the first problem."""
    found = problems()
    if found:
        raise StartRefused(found[0])


def _version_problem() -> str | None:
    try:
        installed = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return f"sglang is not installed; run: pip install sglang=={SGLANG_VERSION}"
    if installed != SGLANG_VERSION:
        return (
            f"sglang {installed} is installed but this version of smartgen works with "
            f"{SGLANG_VERSION} only; run: pip install sglang=={SGLANG_VERSION}"
        )
    return None


def _hook_problem(hook: Hook) -> str | None:
    remedy = f"reinstall sglang=={SGLANG_VERSION}"
    try:
        target = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError) as error:
        return f"hook target {hook.target} is missing ({error}); {remedy}"
    found = tuple(inspect.signature(target).parameters)
    if found != hook.parameters:
        return (
            f"hook target {hook.target} takes {', '.join(found)} instead of "
            f"{', '.join(hook.parameters)}; {remedy}"
        )
    return None


def main() -> int:
    """Print the problems; the exit status is 0 without any and 1 otherwise."""
    importlib.import_module("sglang")
    found = problems()
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
