"""What is known about a transfer when it is over."""

from dataclasses import dataclass

from smartgen.core import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """Counted by the sender from acknowledgements.

    bytes_by_path     acknowledged bytes, paths that carried none are left out
    resent_bytes      part of these that went a second time because a page was replaced
    overlapped_bytes  part of these that was acknowledged before the last chunk was committed
    transfer_s        first write to last acknowledgement; 0 when nothing was written
    tail_s            last commit to last acknowledgement: what the transfer added to prefill
    """

    bytes_by_path: tuple[tuple[Path, int], ...]
    resent_bytes: int
    overlapped_bytes: int
    transfer_s: float
    tail_s: float
    total_pages: int
    writes: int
    late_events: int

    @property
    def total_bytes(self) -> int:
        return sum(count for _, count in self.bytes_by_path)
