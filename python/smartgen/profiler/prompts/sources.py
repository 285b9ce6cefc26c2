"""Text of this interpreter's standard library, by document."""

import sysconfig
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

_LEAST_CHARACTERS = 5_000
_MOST_CHARACTERS = 120_000


@cache
def documentation() -> dict[str, str]:
    """The language reference that `help()` prints, topics long enough to cut prompts from."""
    return {
        f"topic/{name}": text
        for name, text in sorted(topics.items())
        if len(text) >= _LEAST_CHARACTERS
    }


@cache
def code() -> dict[str, str]:
    """Modules of the standard library."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return {
        f"stdlib/{path.name}": path.read_text(encoding="utf-8")
        for path in modules
        if 2 * _LEAST_CHARACTERS <= path.stat().st_size <= _MOST_CHARACTERS
    }
