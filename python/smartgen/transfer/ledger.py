"""Writes of one request that are not over, and what was counted when they were."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from smartgen.core import Path, Run, merge_runs
from smartgen.transfer.report import TransferReport


@dataclass(slots=True, kw_only=True)
class OpenWrite:
    """`stale` are positions whose source page was replaced while the write ran."""

    path: Path
    layer: int
    run: Run
    nbytes: int
    stale: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Acknowledged at `at`, but the chunk is not committed yet: its page may still be replaced."""

    at: float
    layer: int
    run: Run


@dataclass(slots=True)
class Ledger:
    """Gives out write ids, from 1, never twice."""

    open: dict[int, OpenWrite] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    _ids: int = 0
    _bytes: dict[Path, int] = field(default_factory=dict)
    _resent: int = 0
    _overlapped: int = 0
    _first_at: float | None = None
    _last_at: float = 0.0
    _committed_at: float | None = None

    def start(self, at: float, write: OpenWrite) -> int:
        self._ids += 1
        self.open[self._ids] = write
        if self._first_at is None:
            self._first_at = at
        return self._ids

    def acknowledge(self, at: float, write: OpenWrite) -> None:
        self._bytes[write.path] = self._bytes.get(write.path, 0) + write.nbytes
        self._last_at = max(self._last_at, at)
        if self._committed_at is None:
            self._overlapped += write.nbytes

    def resend(self, nbytes: int) -> None:
        self._resent += nbytes

    def all_committed(self, at: float) -> None:
        self._committed_at = at

    def report(self, *, total_pages: int, late_events: int) -> TransferReport:
        spent = 0.0 if self._first_at is None else max(0.0, self._last_at - self._first_at)
        tail = 0.0 if self._committed_at is None else max(0.0, self._last_at - self._committed_at)
        return TransferReport(
            bytes_by_path=tuple(sorted(self._bytes.items())),
            resent_bytes=self._resent,
            overlapped_bytes=self._overlapped,
            transfer_s=spent,
            tail_s=tail,
            total_pages=total_pages,
            writes=self._ids,
            late_events=late_events,
        )


def overlap(run: Run, others: tuple[Run, ...]) -> Iterator[Run]:
    """The parts of `run` that are in one of `others`."""
    for other in others:
        start, stop = max(run.start, other.start), min(run.stop, other.stop)
        if start < stop:
            yield Run(start, stop)


def subtract(run: Run, others: tuple[Run, ...]) -> Iterator[Run]:
    """The parts of `run` that are in none of `others`."""
    start = run.start
    for other in merge_runs(others):
        if other.stop <= start or other.start >= run.stop:
            continue
        if other.start > start:
            yield Run(start, other.start)
        start = max(start, other.stop)
    if start < run.stop:
        yield Run(start, run.stop)
