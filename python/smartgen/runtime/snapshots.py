"""Counters and states of the agents as values, for diagnostics. Fields are only ever added."""

from dataclasses import dataclass

from smartgen.transfer import ReceiverReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCounters:
    opened: int = 0
    delivered: int = 0
    failed: int = 0
    aborted: int = 0
    unknown_posts: int = 0  # for requests that are not open: late, and harmless
    internal_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSnapshot:
    session: str
    requests: int
    queued_bytes: int
    in_flight_bytes: int
    in_flight_writes: int
    rate_bytes_per_s: float | None
    chunk_bytes: int
    window_bytes: int
    stalled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSnapshot:
    """`requests` maps the text of a key to its state and (layer, page) pairs in place."""

    counters: PrefillCounters
    links: tuple[LinkSnapshot, ...]
    requests: dict[str, tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCounters:
    opened: int = 0
    closed: int = 0
    failed: int = 0
    malformed: int = 0
    stray: int = 0  # messages for requests that are not open: late, and harmless


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSnapshot:
    """`requests` maps the text of a key to its report."""

    counters: DecodeCounters
    requests: dict[str, ReceiverReport]
