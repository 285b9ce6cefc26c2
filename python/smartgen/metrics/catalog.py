"""Every metric of SmartGen: name, kind, unit, meaning, labels. Nothing else may be recorded."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0)

SENT_BYTES: Final = Metric(
    name="smartgen:sent_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    meaning="Acknowledged bytes of delivered requests, by why they travelled.",
    labels=("path",),
)
RESENT_BYTES: Final = Metric(
    name="smartgen:resent_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    meaning="Bytes sent a second time because their source page was replaced meanwhile.",
)
OVERLAPPED_BYTES: Final = Metric(
    name="smartgen:overlapped_bytes",
    kind=Kind.COUNTER,
    unit="bytes",
    meaning="Acknowledged bytes that had arrived before prefill of their request ended.",
)
REQUESTS: Final = Metric(
    name="smartgen:requests",
    kind=Kind.COUNTER,
    unit="requests",
    meaning="Requests opened, by transfer mode.",
    labels=("mode",),
)
FALLBACKS: Final = Metric(
    name="smartgen:fallbacks",
    kind=Kind.COUNTER,
    unit="requests",
    meaning="Requests that went by the host's full transfer instead, by reason.",
    labels=("reason",),
)
FAILURES: Final = Metric(
    name="smartgen:failures",
    kind=Kind.COUNTER,
    unit="requests",
    meaning="Requests whose transfer failed, by reason.",
    labels=("reason",),
)
ABORTS: Final = Metric(
    name="smartgen:aborts",
    kind=Kind.COUNTER,
    unit="requests",
    meaning="Requests given up by one of the servers before they were delivered.",
)
TRANSFER_SECONDS: Final = Metric(
    name="smartgen:transfer_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    meaning="First write to last acknowledgement of one delivered request.",
    buckets=_SECONDS,
)
TAIL_SECONDS: Final = Metric(
    name="smartgen:tail_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    meaning="End of prefill to last acknowledgement: the part of a transfer that was waited for.",
    buckets=_SECONDS,
)
TTST_SECONDS: Final = Metric(
    name="smartgen:ttst_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    meaning="Time to second token, seen by the decode server.",
    buckets=_SECONDS,
)
STATISTICS_SECONDS: Final = Metric(
    name="smartgen:statistics_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    meaning="Spent on the statistics of one prompt while it was prefilled.",
    buckets=(0.001, 0.0025, 0.005, *_SECONDS),
)
STATISTICS_FAILURES: Final = Metric(
    name="smartgen:statistics_failures",
    kind=Kind.COUNTER,
    unit="requests",
    meaning="Requests whose statistics were given up because of an error.",
)
LINK_RATE: Final = Metric(
    name="smartgen:link_rate_bytes_per_second",
    kind=Kind.GAUGE,
    unit="bytes/s",
    meaning="Delivered rate of the link used last, while it was busy.",
)
IN_FLIGHT_BYTES: Final = Metric(
    name="smartgen:in_flight_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    meaning="Bytes submitted and not yet acknowledged, over all links.",
)
QUEUED_BYTES: Final = Metric(
    name="smartgen:queued_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    meaning="Bytes that wait for a link.",
)
MALFORMED: Final = Metric(
    name="smartgen:malformed_messages",
    kind=Kind.COUNTER,
    unit="messages",
    meaning="Control messages of ours that could not be read, or named pages that do not exist.",
)
MISMATCHED: Final = Metric(
    name="smartgen:mismatched_peers",
    kind=Kind.COUNTER,
    unit="peers",
    meaning="Peers refused because model, page layout, mode or version differ.",
)

CATALOG: Final[tuple[Metric, ...]] = (
    SENT_BYTES,
    RESENT_BYTES,
    OVERLAPPED_BYTES,
    REQUESTS,
    FALLBACKS,
    FAILURES,
    ABORTS,
    TRANSFER_SECONDS,
    TAIL_SECONDS,
    TTST_SECONDS,
    STATISTICS_SECONDS,
    STATISTICS_FAILURES,
    LINK_RATE,
    IN_FLIGHT_BYTES,
    QUEUED_BYTES,
    MALFORMED,
    MISMATCHED,
)
