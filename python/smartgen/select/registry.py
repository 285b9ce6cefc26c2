"""Selectors by name: built-in families and plugins.

A name is one of `known_selectors()` or several joined by "+". A plugin is an entry point in group
`smartgen.selectors` whose object is called with the profile (or None) and returns a Selector. It
is loaded when its name is asked for. It may not take a built-in's name: one that does is refused
whichever selector is asked for, since nobody could tell which of the two is meant.
"""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from smartgen.profile import DIGESTS, Profile
from smartgen.select import selectors
from smartgen.select.errors import SelectError, UnknownSelector
from smartgen.select.evidence import Selector
from smartgen.select.selectors import POOLS, Combination, Rule, RuleSelector

PLUGIN_GROUP: Final = "smartgen.selectors"

_MOST_QUERIES: Final = 1024
_Maker = Callable[[re.Match[str], Profile | None], Rule]


def _position(match: re.Match[str], profile: Profile | None) -> Rule:
    if profile is None:
        raise SelectError("selector 'position' reads the profile; give it one")
    return selectors.position(profile)


def _window(match: re.Match[str], profile: Profile | None) -> Rule:
    queries = int(match["queries"])
    if queries > _MOST_QUERIES:
        raise SelectError(
            f"selector {match[0]!r} looks at {queries} queries, must be 1..{_MOST_QUERIES}"
        )
    return selectors.window(queries, match["pool"], next_block=match["next"] is not None)


# How it is shown, how it is read, how it is made.
_BUILT_IN: Final[tuple[tuple[str, re.Pattern[str], _Maker], ...]] = tuple(
    (shown, re.compile(pattern), make)
    for shown, pattern, make in (
        (
            f"window-QUERIES-{'|'.join(POOLS)}[-next]",
            rf"window-(?P<queries>[1-9][0-9]{{0,5}})-(?P<pool>{'|'.join(POOLS)})(?P<next>-next)?",
            _window,
        ),
        ("position", "position", _position),
        ("|".join(DIGESTS), "|".join(DIGESTS), lambda match, _: selectors.digest(match[0])),
        ("accumulated", "accumulated", lambda *_: selectors.accumulated),
        ("accumulated-mean", "accumulated-mean", lambda *_: selectors.accumulated_mean),
        ("sinks-recent", "sinks-recent", lambda *_: selectors.sinks_recent),
        (
            "random[-SEED]",
            "random(?:-(?P<seed>[0-9]{1,9}))?",
            lambda match, _: selectors.random(int(match["seed"] or 0)),
        ),
        ("oracle", "oracle", lambda *_: selectors.oracle),
        ("oracle-max", "oracle-max", lambda *_: selectors.oracle_max),
    )
)


def selector(name: str, profile: Profile | None = None) -> Selector:
    """The selector of this name. Reads the installed distributions: for start-up, not per request.

    Raises UnknownSelector for a name that nobody has, SelectError for one that needs a profile
    and got none or whose plugin fails, naming the distribution that brought it.
    """
    plugins = _plugins()
    parts = tuple(_single(part, profile, plugins) for part in name.split("+"))
    return parts[0] if len(parts) == 1 else Combination(name, parts)


def known_selectors() -> tuple[str, ...]:
    """Patterns of the built-in names, then the names of installed plugins."""
    return (*(shown for shown, _, _ in _BUILT_IN), *sorted({entry.name for entry in _plugins()}))


def _single(name: str, profile: Profile | None, plugins: tuple[EntryPoint, ...]) -> Selector:
    for _, pattern, make in _BUILT_IN:
        match = pattern.fullmatch(name)
        if match:
            return RuleSelector(name, make(match, profile))
    offers = [entry for entry in plugins if entry.name == name]
    if not offers:
        raise UnknownSelector(
            f"unknown selector {name!r}: use one of {', '.join(known_selectors())}, "
            "or several joined by '+'"
        )
    if len(offers) > 1:
        raise SelectError(
            f"selector {name!r} comes from {' and '.join(_distribution(e) for e in offers)}; "
            "uninstall all but one"
        )
    return _load(offers[0], profile)


def _plugins() -> tuple[EntryPoint, ...]:
    found = tuple(entry_points(group=PLUGIN_GROUP))
    for entry in found:
        if "+" in entry.name or any(pattern.fullmatch(entry.name) for _, pattern, _ in _BUILT_IN):
            raise SelectError(
                f"{_distribution(entry)} brings a selector named {entry.name!r}, which is a "
                "built-in's name or holds '+'; uninstall it or rename its entry point"
            )
    return found


def _load(entry: EntryPoint, profile: Profile | None) -> Selector:
    try:
        made: Selector = entry.load()(profile)
    except Exception as error:  # foreign code may raise anything
        raise SelectError(
            f"selector {entry.name!r} of {_distribution(entry)} cannot be made: "
            f"{type(error).__name__}: {error}; mend or uninstall it"
        ) from error
    if not isinstance(getattr(made, "name", None), str) or not callable(
        getattr(made, "score", None)
    ):
        raise SelectError(
            f"selector {entry.name!r} of {_distribution(entry)} is a {type(made).__name__} "
            "without a name and a score method; mend or uninstall it"
        )
    return made


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed distribution"
