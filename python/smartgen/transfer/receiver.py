"""The decode side of one request: when may it start.

    OPEN --Succeeded--> SUCCEEDED --every page landed--> READY --Released--> CLOSED
      '---- Failed, or success without the pages ----> FAILED --Released--> CLOSED

In mode layerwise a request is ready when the host reported success and every (layer, page) has
landed; in mode full, or after a fallback, success alone is enough. Notes may come in any order
and twice.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from smartgen.core import Mode, RequestKey, Run
from smartgen.residency import BlockTable, Residency, ResidencyError
from smartgen.transfer.errors import IllegalEvent
from smartgen.transfer.events import Event
from smartgen.transfer.ledger import subtract


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedNote(Event):
    layer: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredNote(Event):
    total_bytes: int
    transfer_s: float
    resent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackNote(Event):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded(Event):
    """The host's own success status arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """The host forgets the transfer; the pages are its own again."""


class Receiving(Enum):
    OPEN = "open"
    SUCCEEDED = "succeeded"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


NEXT: Final[dict[Receiving, frozenset[Receiving]]] = {
    Receiving.OPEN: frozenset(
        {Receiving.SUCCEEDED, Receiving.READY, Receiving.FAILED, Receiving.CLOSED}
    ),
    Receiving.SUCCEEDED: frozenset({Receiving.READY, Receiving.FAILED, Receiving.CLOSED}),
    Receiving.READY: frozenset({Receiving.FAILED, Receiving.CLOSED}),
    Receiving.FAILED: frozenset({Receiving.CLOSED}),
    Receiving.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverReport:
    """How one request came in. Times in seconds, None where it did not happen."""

    mode: Mode
    state: Receiving
    total_pages: int
    resident: int  # (layer, page) pairs
    fallback: str | None
    failure: str | None
    ready_after_s: float | None  # since the request was opened
    transfer_s: float | None  # as the sender measured it
    total_bytes: int | None
    resent_bytes: int | None


class ReceiverMachine:
    """`mode` is FULL or LAYERWISE; `at` is when the pages were offered to the sender."""

    def __init__(
        self, *, key: RequestKey, at: float, layers: int, total_pages: int, mode: Mode
    ) -> None:
        if mode is Mode.SELECTIVE:
            raise ValueError(f"request {key}: mode selective is not in this release")
        self.key = key
        self.state = Receiving.OPEN
        self.late_events = 0
        self.failure: str | None = None
        self.story: deque[tuple[float, str, str]] = deque(maxlen=64)
        self._mode = mode
        self._opened_at = at
        self._ready_at: float | None = None
        self._succeeded_at: float | None = None
        self._fallback: str | None = None
        self._delivered: DeliveredNote | None = None
        self._table = BlockTable(layers=layers, pages=total_pages)

    def step(self, event: Event) -> None:
        """Take one event. Raises IllegalEvent, nothing changed, for pages outside the request."""
        if self.state is Receiving.CLOSED:
            self.late_events += 1
            return
        try:
            _REACTIONS[type(event)](self, event)
        except ResidencyError as error:
            raise IllegalEvent(self.key, self.state.value, event, str(error), self.story) from error
        if not isinstance(event, LandedNote):
            self.story.append((event.at, type(event).__name__, self.state.value))

    @property
    def ready(self) -> bool:
        return self.state is Receiving.READY

    @property
    def waiting_since(self) -> float | None:
        """When success was reported, while pages are still missing; else None."""
        return self._succeeded_at if self.state is Receiving.SUCCEEDED else None

    @property
    def missing(self) -> int:
        """(layer, page) pairs that have not landed."""
        return self._table.layers * self._table.pages - self._table.count(Residency.RESIDENT)

    def report(self) -> ReceiverReport:
        note = self._delivered
        ready_after = None if self._ready_at is None else self._ready_at - self._opened_at
        return ReceiverReport(
            mode=self._mode,
            state=self.state,
            total_pages=self._table.pages,
            resident=self._table.count(Residency.RESIDENT),
            fallback=self._fallback,
            failure=self.failure,
            ready_after_s=ready_after,
            transfer_s=None if note is None else note.transfer_s,
            total_bytes=None if note is None else note.total_bytes,
            resent_bytes=None if note is None else note.resent_bytes,
        )

    def check(self) -> None:
        """Assert what must hold between any two events."""
        self._table.check()
        if self.state is Receiving.READY:
            assert self._succeeded_at is not None
            assert not self._needs_pages or self._table.complete
        if self.state is Receiving.SUCCEEDED:
            assert self._needs_pages
            assert not self._table.complete
        if self.state is Receiving.FAILED:
            assert self.failure is not None

    @property
    def _needs_pages(self) -> bool:
        return self._mode is not Mode.FULL and self._fallback is None

    def _on_landed(self, event: LandedNote) -> None:
        for run in event.runs:
            # Bounds first: a note is taken as a whole or not at all.
            self._table.runs(event.layer, Residency.ABSENT, within=run)
        for run in event.runs:
            there = self._table.runs(event.layer, Residency.RESIDENT, within=run)
            self.late_events += len(there)
            for new in subtract(run, there):
                self._table.land(event.layer, new)
        self._advance(event.at)

    def _on_delivered(self, event: DeliveredNote) -> None:
        self._delivered = event

    def _on_fallback(self, event: FallbackNote) -> None:
        self._fallback = event.reason
        self._advance(event.at)

    def _on_succeeded(self, event: Succeeded) -> None:
        if self.state is not Receiving.OPEN:
            self.late_events += 1
            return
        self._succeeded_at = event.at
        self._become(Receiving.SUCCEEDED)
        self._advance(event.at)

    def _on_failed(self, event: Failed) -> None:
        if self.state is Receiving.FAILED:
            self.late_events += 1
            return
        self.failure = event.reason
        self._become(Receiving.FAILED)

    def _on_released(self, event: Released) -> None:
        self._become(Receiving.CLOSED)

    def _advance(self, at: float) -> None:
        if self.state is Receiving.SUCCEEDED and (self._table.complete or not self._needs_pages):
            self._ready_at = at
            self._become(Receiving.READY)

    def _become(self, state: Receiving) -> None:
        assert state in NEXT[self.state], f"{self.state} cannot become {state}"
        self.state = state


_REACTIONS: Final[dict[type[Event], Callable[[ReceiverMachine, Any], None]]] = {
    LandedNote: ReceiverMachine._on_landed,
    DeliveredNote: ReceiverMachine._on_delivered,
    FallbackNote: ReceiverMachine._on_fallback,
    Succeeded: ReceiverMachine._on_succeeded,
    Failed: ReceiverMachine._on_failed,
    Released: ReceiverMachine._on_released,
}
