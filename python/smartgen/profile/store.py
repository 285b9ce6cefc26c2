"""Profiles as files: one JSON object with a checksum over its content.

The text is meant to be read and compared: one scalar or one row of numbers per line. `sha256` is
that of the canonical form (sorted keys, no spaces, the `sha256` key left out), so a file may be
re-indented but not changed. A file is bounded before it is read and checked before it is used.
"""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import msgspec

from smartgen.profile.errors import ProfileError
from smartgen.profile.schema import FORMAT, Identity, Profile
from smartgen.profile.validate import problem

MAX_BYTES: Final = 8 << 20

_AGAIN: Final = "make it again with 'smartgen profile'"
_COPY: Final = "copy it again from its source or make it again with 'smartgen profile'"
_BYTES: Final = "profile"

# chat_template_sha256 is left out: another template makes a profile less good, not wrong.
_LAYOUT: Final = tuple(
    name for name in Identity.__struct_fields__ if name != "chat_template_sha256"
)


def load(source: Path | bytes, *, name: str | None = None) -> Profile:
    """The profile in a file or in bytes; `name` stands for the bytes in error messages.

    Raises ProfileError when it cannot be read, is larger than MAX_BYTES, damaged, of another
    format, or holds a value outside its range.
    """
    if isinstance(source, bytes):
        return _parse(source, name or _BYTES)
    shown = name or str(source)
    try:
        with source.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(
            shown, f"cannot be read ({error.strerror})", "give the path of a readable profile"
        ) from error
    return _parse(data, shown)


def dump(profile: Profile, *, name: str = _BYTES) -> str:
    """The text of a profile's file, line feed at its end. Raises ProfileError for a bad value."""
    _refuse_bad_values(profile, name)
    content = msgspec.to_builtins(profile)
    text = _pretty({"sha256": _sha256(content), **content}) + "\n"
    if len(text.encode()) > MAX_BYTES:
        raise ProfileError(
            name, f"would be larger than {MAX_BYTES} bytes", "use fewer length and position bins"
        )
    return text


def check_fits(profile: Profile, identity: Identity, *, name: str = _BYTES) -> None:
    """Raise ProfileError, naming both values, if the profile is of another model or layout."""
    field = _misfit(profile, identity)
    if field is not None:
        raise ProfileError(
            name,
            f"was made for {field} {getattr(profile.identity, field)}, "
            f"this server has {getattr(identity, field)}",
            "use the profile of this model and page size, or make one with 'smartgen profile'",
        )


def shipped(identity: Identity, *, folder: Traversable | None = None) -> Profile | None:
    """The profile that comes with this package and fits, or None.

    `folder` is where to look, by default the package's own. Raises ProfileError when a file there
    is damaged: then the installation is.
    """
    place = files("smartgen.profile") / "shipped" if folder is None else folder
    if not place.is_dir():
        return None
    for entry in sorted(place.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".json"):
            profile = load(entry.read_bytes(), name=str(entry))
            if _misfit(profile, identity) is None:
                return profile
    return None


def _misfit(profile: Profile, identity: Identity) -> str | None:
    return next(
        (name for name in _LAYOUT if getattr(profile.identity, name) != getattr(identity, name)),
        None,
    )


def _parse(data: bytes, name: str) -> Profile:
    if len(data) > MAX_BYTES:
        raise ProfileError(name, f"is larger than {MAX_BYTES} bytes", "give a profile, not a model")
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileError(name, f"is no JSON ({error})", _COPY) from error
    if not isinstance(content, dict):
        raise ProfileError(name, "holds no JSON object", _COPY)
    found = content.pop("sha256", None)
    if found != _sha256(content):
        raise ProfileError(
            name, "is damaged or was edited: its sha256 is not that of its content", _COPY
        )
    if content.get("format") != FORMAT:
        raise ProfileError(
            name,
            f"has format {content.get('format')!r}, this version reads {FORMAT}",
            f"install the smartgen version it was made with or {_AGAIN}",
        )
    try:
        profile = msgspec.convert(content, Profile)
    except msgspec.ValidationError as error:
        raise ProfileError(name, f"does not follow the schema: {error}", _AGAIN) from error
    _refuse_bad_values(profile, name)
    return profile


def _refuse_bad_values(profile: Profile, name: str) -> None:
    cause = problem(profile)
    if cause is not None:
        raise ProfileError(name, cause, _AGAIN)


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with one line for each scalar and each list of scalars."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{_scalar(key)}: {_pretty(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple):
        if any(isinstance(item, dict | list | tuple) for item in value):
            rows = [inner + _pretty(item, inner) for item in value]
            return "[\n" + ",\n".join(rows) + f"\n{indent}]"
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode()
