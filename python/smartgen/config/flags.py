"""Flags, environment and documentation, generated from `Settings`.

`--smartgen-<field>` for each field; `SMARTGEN_CONFIG` holds the same as one JSON object for
callers that have no command line (SGLang's Python `Engine`).
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from smartgen.config.environment import variable
from smartgen.config.settings import Settings, SettingsError
from smartgen.core import Mode

ENVIRONMENT_VARIABLE = "SMARTGEN_CONFIG"
_PREFIX = "smartgen_"
# Named in the enum for peers that know it, refused by Settings until it exists.
_NOT_YET = {Mode.SELECTIVE}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one `--smartgen-*` option per setting to `parser`."""
    group = parser.add_argument_group("SmartGen")
    for field in dataclasses.fields(Settings):
        option = "--" + (_PREFIX + field.name).replace("_", "-")
        text = f"{field.metadata['help']} Default: {_plain(field.default)}.".replace("%", "%%")
        if isinstance(field.default, bool):
            group.add_argument(option, action="store_true", default=field.default, help=text)
        elif isinstance(field.default, Enum):
            group.add_argument(
                option, choices=_choices(field.default), default=_plain(field.default), help=text
            )
        else:
            group.add_argument(option, type=type(field.default), default=field.default, help=text)


def settings_from_namespace(namespace: argparse.Namespace) -> Settings:
    """Settings from parsed flags. Raises SettingsError."""
    values = {
        field.name: getattr(namespace, _PREFIX + field.name)
        for field in dataclasses.fields(Settings)
        if hasattr(namespace, _PREFIX + field.name)
    }
    return settings_from_mapping(values)


def settings_from_environment() -> Settings:
    """Settings from `SMARTGEN_CONFIG`, or the defaults where it is unset. Raises SettingsError."""
    text = variable(ENVIRONMENT_VARIABLE)
    if not text:
        return Settings()
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{ENVIRONMENT_VARIABLE} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(
            f'{ENVIRONMENT_VARIABLE} must be a JSON object, e.g. {{"mode": "full"}}'
        )
    return settings_from_mapping(values)


def settings_from_mapping(values: Mapping[str, Any]) -> Settings:
    """Settings from plain values by field name. Raises SettingsError naming the bad one."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise SettingsError(f"unknown SmartGen setting {unknown[0]!r}; known: {', '.join(fields)}")
    return Settings(**{name: _typed(fields[name], value) for name, value in values.items()})


def settings_to_mapping(settings: Settings) -> dict[str, Any]:
    """The inverse of `settings_from_mapping`: plain values that survive JSON and pickling."""
    return {f.name: _plain(getattr(settings, f.name)) for f in dataclasses.fields(settings)}


def settings_table() -> str:
    """The README's table of flags, in Markdown."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(Settings):
        option = "--" + (_PREFIX + field.name).replace("_", "-")
        rows.append(f"| `{option}` | `{_plain(field.default)}` | {field.metadata['help']} |")
    return "\n".join(rows)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _choices(default: Enum) -> list[str]:
    return [member.value for member in type(default) if member not in _NOT_YET]


def _typed(field: "dataclasses.Field[Any]", value: Any) -> Any:
    option = "--" + (_PREFIX + field.name).replace("_", "-")
    default = field.default
    try:
        if isinstance(default, Enum):
            return type(default)(value)
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise ValueError
            return value
        return type(default)(value)
    except (TypeError, ValueError):
        allowed = _choices(default) if isinstance(default, Enum) else type(default).__name__
        raise SettingsError(f"{option} {value!r} is not allowed; allowed: {allowed}") from None
