"""The prefill side of one request: which bytes go when, and when it is safe to say so.

    STREAMING --last chunk--> COMMITTED --all KV acked, aux known--> AUX --aux acked--> CLOSED
        '------------------------'--- aborted or broken ---'--> SETTLING --last write over--> CLOSED

Rules. A page is read only from the page list that is current when the link grants it. A position
is told to the peer when its write was acknowledged *and* its chunk committed without the page
having been replaced before the acknowledgement; a replaced page is written again, once, after the
first write is over. Aux follows the last acknowledgement of KV. `ReportDrained` is the last command
of every machine and comes exactly once. Events that come too late change nothing and are counted.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import numpy as np

from smartgen.core import Destination, KVGeometry, Path, RequestKey, Run, contiguous_pieces
from smartgen.core.runs import mask_runs
from smartgen.residency import BlockTable, Residency, ResidencyError
from smartgen.transfer.errors import IllegalEvent
from smartgen.transfer.events import (
    Aborted,
    Acked,
    AuxReady,
    Block,
    Broken,
    ChunkCommitted,
    Command,
    DropQueued,
    Enqueue,
    Event,
    Granted,
    LayerWritten,
    ReportDelivered,
    ReportDrained,
    ReportFailed,
    SendLanded,
    Span,
    Write,
    WriteFailed,
)
from smartgen.transfer.ledger import Held, Ledger, OpenWrite, overlap, subtract

UNKNOWN: Final = -1  # source page of a position nobody announced yet


class Sending(Enum):
    STREAMING = "streaming"
    COMMITTED = "committed"
    AUX = "aux"
    SETTLING = "settling"
    CLOSED = "closed"


class Outcome(Enum):
    DELIVERED = "delivered"
    ABORTED = "aborted"
    FAILED = "failed"


def _kinds(*kinds: type[Event]) -> frozenset[type[Event]]:
    return frozenset(kinds)


_ENDINGS = _kinds(Acked, WriteFailed, Aborted, Broken)

ACCEPTS: Final[dict[Sending, frozenset[type[Event]]]] = {
    Sending.STREAMING: _ENDINGS | _kinds(LayerWritten, ChunkCommitted, Granted),
    Sending.COMMITTED: _ENDINGS | _kinds(AuxReady, Granted),
    Sending.AUX: _ENDINGS,
    Sending.SETTLING: _kinds(Acked, WriteFailed),
    Sending.CLOSED: _kinds(),
}

NEXT: Final[dict[Sending, frozenset[Sending]]] = {
    Sending.STREAMING: frozenset({Sending.COMMITTED, Sending.SETTLING}),
    Sending.COMMITTED: frozenset({Sending.AUX, Sending.SETTLING, Sending.CLOSED}),
    Sending.AUX: frozenset({Sending.SETTLING, Sending.CLOSED}),
    Sending.SETTLING: frozenset({Sending.CLOSED}),
    Sending.CLOSED: frozenset(),
}

_OVER = frozenset({Sending.SETTLING, Sending.CLOSED})
_UNTOLD = _kinds(Granted, Acked)  # too many for a story


class SenderMachine:
    """One request to one destination.

    src_entries   base address of each entry of the local KV pool, in the order of the geometry
    """

    def __init__(
        self,
        *,
        key: RequestKey,
        geometry: KVGeometry,
        src_entries: tuple[int, ...],
        destination: Destination,
    ) -> None:
        if not geometry.entries == len(src_entries) == len(destination.entries):
            raise ValueError(
                f"request {key}: {len(src_entries)} source and {len(destination.entries)} "
                f"destination entries, the geometry has {geometry.entries}"
            )
        self.key = key
        self.state = Sending.STREAMING
        self.outcome: Outcome | None = None
        self.late_events = 0
        self.story: deque[tuple[float, str, str]] = deque(maxlen=64)
        self._geometry = geometry
        self._src_entries = src_entries
        self._destination = destination
        self._total = len(destination.pages)
        self._table = BlockTable(layers=geometry.layers, pages=self._total)
        self._src_pages = np.full(self._total, UNKNOWN, dtype=np.int32)
        self._committed = 0
        self._aux: tuple[Block, ...] | None = None
        self._ledger = Ledger()

    # -- the only door

    def step(self, event: Event) -> list[Command]:
        """Take one event, return what is to be done, in order.

        Raises IllegalEvent, with nothing changed, for an event that the state forbids.
        """
        kind = type(event)
        if kind not in ACCEPTS[self.state]:
            if self.state in _OVER:
                self.late_events += 1
                return []
            raise self._illegal(event, f"only {_names(ACCEPTS[self.state])} are expected")
        try:
            commands = _REACTIONS[kind](self, event)
        except ResidencyError as error:
            raise self._illegal(event, str(error)) from error
        if kind not in _UNTOLD:
            self.story.append((event.at, kind.__name__, self.state.value))
        return commands

    @property
    def in_flight(self) -> int:
        """Writes that are not over."""
        return len(self._ledger.open)

    @property
    def resident(self) -> int:
        """(layer, page) pairs known to be in place at the destination."""
        return self._table.count(Residency.RESIDENT)

    def check(self) -> None:
        """Assert what must hold between any two events."""
        self._table.check()
        writes = self._ledger.open.values()
        moving = sum(write.run.length for write in writes if write.path is not Path.AUX)
        held = sum(piece.run.length for piece in self._ledger.held)
        if self.state not in _OVER:
            assert self._table.count(Residency.IN_FLIGHT) == moving + held
            assert self.outcome is None
        if self.state in (Sending.AUX, Sending.CLOSED) and self.outcome in (
            None,
            Outcome.DELIVERED,
        ):
            assert self._table.complete
        if self.state is Sending.CLOSED:
            assert not self._ledger.open
            assert self.outcome is not None
        if self.state is not Sending.STREAMING and self.state not in _OVER:
            assert self._committed == self._total
            assert not self._ledger.held

    # -- announcements of the host

    def _on_layer_written(self, event: LayerWritten) -> list[Command]:
        run = Run(event.start, event.start + len(event.src_pages))
        if not 0 <= run.start <= run.stop <= self._total:
            raise self._illegal(event, f"pages {run.start}..{run.stop} of {self._total}")
        known = self._src_pages[run.start : run.stop]
        if not ((known == event.src_pages) | (known == UNKNOWN)).all():
            raise self._illegal(event, f"layer {event.layer} announces other pages than before")
        self._table.queue(event.layer, run)
        known[:] = event.src_pages
        return self._enqueue(event.layer, (run,))

    def _on_chunk_committed(self, event: ChunkCommitted) -> list[Command]:
        chunk = Run(event.start, event.start + len(event.src_pages))
        if chunk.start != self._committed or chunk.stop > self._total:
            raise self._illegal(
                event,
                f"pages {chunk.start}..{chunk.stop} do not follow {self._committed} "
                f"or pass {self._total}",
            )
        if event.last and chunk.stop != self._total:
            raise self._illegal(event, f"last chunk ends at {chunk.stop} of {self._total} pages")
        known = self._src_pages[chunk.start : chunk.stop]
        replaced = mask_runs((known != event.src_pages) & (known != UNKNOWN), offset=chunk.start)
        known[:] = event.src_pages
        self._committed = chunk.stop
        commands = self._mark_replaced(event.at, chunk, replaced)
        for layer in range(self._geometry.layers):
            unsent = self._table.runs(layer, Residency.ABSENT, within=chunk)
            for run in unsent:
                self._table.queue(layer, run)
            commands += self._enqueue(layer, unsent)
        if event.last:
            self._ledger.all_committed(event.at)
            self._become(Sending.COMMITTED)
        return commands

    def _mark_replaced(self, at: float, chunk: Run, replaced: tuple[Run, ...]) -> list[Command]:
        """Writes that run now read the old page; of those over, only what ended after `at`."""
        for write in self._ledger.open.values():
            write.stale += tuple(overlap(write.run, replaced))
        held, self._ledger.held = self._ledger.held, []
        commands: list[Command] = []
        for piece in held:
            for rest in subtract(piece.run, (chunk,)):
                self._ledger.held.append(Held(at=piece.at, layer=piece.layer, run=rest))
            stale = replaced if piece.at >= at else ()
            for run in overlap(piece.run, (chunk,)):
                commands += self._confirm(piece.layer, run, stale)
        return commands

    def _on_aux_ready(self, event: AuxReady) -> list[Command]:
        if self._aux is not None:
            raise self._illegal(event, "aux was announced before")
        self._aux = event.writes
        return self._advance(event.at)

    # -- the link

    def _on_granted(self, event: Granted) -> list[Command]:
        span = event.span
        self._table.launch(span.layer, span.run)
        blocks = self._blocks(span.layer, span.run)
        nbytes = span.run.length * span.page_bytes
        write = OpenWrite(path=span.path, layer=span.layer, run=span.run, nbytes=nbytes)
        write_id = self._ledger.start(event.at, write)
        return [Write(write_id=write_id, path=span.path, blocks=blocks, nbytes=nbytes)]

    def _on_acked(self, event: Acked) -> list[Command]:
        write = self._ledger.open.pop(event.write_id, None)
        if write is None:
            self.late_events += 1
            return []
        self._ledger.acknowledge(event.at, write)
        if self.state is Sending.SETTLING:
            return self._settle()
        if write.path is Path.AUX:
            return self._deliver()
        commands: list[Command] = []
        for run in overlap(write.run, (Run(0, self._committed),)):
            commands += self._confirm(write.layer, run, write.stale)
        for run in overlap(write.run, (Run(self._committed, self._total),)):
            self._ledger.held.append(Held(at=event.at, layer=write.layer, run=run))
        return commands + self._advance(event.at)

    def _on_write_failed(self, event: WriteFailed) -> list[Command]:
        if self._ledger.open.pop(event.write_id, None) is None:
            self.late_events += 1
            return []
        if self.state is Sending.SETTLING:
            return self._settle()
        return self._give_up(Outcome.FAILED, event.reason)

    # -- endings

    def _on_aborted(self, event: Aborted) -> list[Command]:
        return self._give_up(Outcome.ABORTED, event.reason)

    def _on_broken(self, event: Broken) -> list[Command]:
        return self._give_up(Outcome.FAILED, event.reason)

    def _give_up(self, outcome: Outcome, reason: str) -> list[Command]:
        self.outcome = outcome
        self._become(Sending.SETTLING)
        commands: list[Command] = [DropQueued()]
        if outcome is Outcome.FAILED:
            commands.append(ReportFailed(reason=reason))
        return commands + self._settle()

    def _settle(self) -> list[Command]:
        if self._ledger.open:
            return []
        self._become(Sending.CLOSED)
        return [ReportDrained()]

    def _advance(self, at: float) -> list[Command]:
        if self.state is not Sending.COMMITTED or self._aux is None or not self._table.complete:
            return []
        if not self._aux:
            return self._deliver()
        nbytes = sum(size for _, _, size in self._aux)
        write = OpenWrite(path=Path.AUX, layer=0, run=Run(0, 0), nbytes=nbytes)
        self._become(Sending.AUX)
        write_id = self._ledger.start(at, write)
        return [Write(write_id=write_id, path=Path.AUX, blocks=self._aux, nbytes=nbytes)]

    def _deliver(self) -> list[Command]:
        self.outcome = Outcome.DELIVERED
        self._become(Sending.CLOSED)
        report = self._ledger.report(total_pages=self._total, late_events=self.late_events)
        return [ReportDelivered(report=report), ReportDrained()]

    # -- parts

    def _confirm(self, layer: int, run: Run, stale: tuple[Run, ...]) -> list[Command]:
        """Settle what is good of an acknowledged, committed run; queue the rest again."""
        good = tuple(subtract(run, stale))
        for part in good:
            self._table.settle(layer, part)
        again = tuple(overlap(run, stale))
        for part in again:
            self._table.requeue(layer, part)
            self._ledger.resend(part.length * self._geometry.layer_page_bytes(layer))
        told: list[Command] = [SendLanded(layer=layer, runs=good)] if good else []
        return told + self._enqueue(layer, again)

    def _enqueue(self, layer: int, runs: tuple[Run, ...]) -> list[Command]:
        page_bytes = self._geometry.layer_page_bytes(layer)
        spans = tuple(
            Span(Path.LAYERWISE, layer, run, page_bytes) for run in runs if run.length > 0
        )
        return [Enqueue(spans=spans)] if spans else []

    def _blocks(self, layer: int, run: Run) -> tuple[Block, ...]:
        src = self._src_pages[run.start : run.stop]
        dst = self._destination.pages[run.start : run.stop]
        pieces = [
            (int(src[piece.start]), int(dst[piece.start]), piece.length)
            for piece in contiguous_pieces(src, dst)
        ]
        blocks: list[Block] = []
        for entry in self._geometry.entries_of(layer):
            size = self._geometry.page_bytes[entry]
            src_base, dst_base = self._src_entries[entry], self._destination.entries[entry]
            blocks += [
                (src_base + src_page * size, dst_base + dst_page * size, count * size)
                for src_page, dst_page, count in pieces
            ]
        return tuple(blocks)

    def _become(self, state: Sending) -> None:
        assert state in NEXT[self.state], f"{self.state} cannot become {state}"
        self.state = state

    def _illegal(self, event: Event, why: str) -> IllegalEvent:
        return IllegalEvent(self.key, self.state.value, event, why, self.story)


def _names(kinds: frozenset[type[Event]]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))


_REACTIONS: Final[dict[type[Event], Callable[[SenderMachine, Any], list[Command]]]] = {
    LayerWritten: SenderMachine._on_layer_written,
    ChunkCommitted: SenderMachine._on_chunk_committed,
    AuxReady: SenderMachine._on_aux_ready,
    Granted: SenderMachine._on_granted,
    Acked: SenderMachine._on_acked,
    WriteFailed: SenderMachine._on_write_failed,
    Aborted: SenderMachine._on_aborted,
    Broken: SenderMachine._on_broken,
}
