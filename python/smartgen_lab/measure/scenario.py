"""A benchmark's settings: a TOML file, checked for unknown keys and wrong types."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of each benchmark's settings."""

    def as_dict(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


S = TypeVar("S", bound=Scenario)


def load_scenario(kind: type[S], path: Path, **overrides: Any) -> S:
    """Overrides that are None leave the file's value. Raises SystemExit with one sentence."""
    try:
        values = tomllib.loads(path.read_text())
        values |= {name: value for name, value in overrides.items() if value is not None}
        return msgspec.convert(values, type=kind)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SystemExit(f"scenario {path}: {error}") from error
