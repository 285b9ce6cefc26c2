"""What can happen to a transfer (past tense) and what a machine asks for (imperative).

Every event carries `at`, in seconds of any one monotonic clock; machines never read a clock.
"""

from dataclasses import dataclass
from typing import NamedTuple

from smartgen.core import Pages, Path, Run
from smartgen.transfer.report import TransferReport

Block = tuple[int, int, int]  # (src address, dst address, bytes): one descriptor


class Span(NamedTuple):
    """Positions of one layer that wait for the link. A tuple because queues hold thousands."""

    path: Path
    layer: int
    run: Run
    page_bytes: int  # of one position, all entries of the layer


@dataclass(frozen=True, slots=True)
class Event:
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWritten(Event):
    """The KV of positions start .. start + n - 1 of this layer is in `src_pages` (int32 [n]) now.

    The pages stay the request's own until the chunk is committed.
    """

    layer: int
    start: int
    src_pages: Pages


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCommitted(Event):
    """Authoritative pages of positions start .. start + n - 1, all layers written.

    A page may differ from the one announced: the host keeps one copy of equal pages. The page
    announced earlier may be reused from `at` on.
    """

    start: int
    src_pages: Pages
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxReady(Event):
    """The request's metadata may be written once all KV is acknowledged. May be empty."""

    writes: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted(Event):
    """The link has room for this queued span now."""

    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked(Event):
    """Every block of this write is in the destination's memory."""

    write_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed(Event):
    """This write is over and did not succeed."""

    write_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted(Event):
    """One of the two servers gave the request up."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Event):
    """The request cannot succeed any more; writes already submitted may still be running."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    """Put these into the link queue; answer with Granted, span by span, in parts if need be."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropQueued:
    """Forget whatever of this request waits in the link queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Submit these blocks; answer once, with Acked or WriteFailed, when all are final."""

    write_id: int
    path: Path
    blocks: tuple[Block, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLanded:
    """Tell the peer."""

    layer: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDelivered:
    report: TransferReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFailed:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDrained:
    """No write of this request is running any more: its pages may be freed on both sides."""


Command = Enqueue | DropQueued | Write | SendLanded | ReportDelivered | ReportFailed | ReportDrained
