"""The decode side's agent: a table of receiver machines behind one lock.

It has no thread. The host's control thread feeds messages, its scheduler asks whether a request
may start. No method waits for anything but the lock, and none raises for what a peer sent.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from smartgen.core import Mode, RequestKey, Run
from smartgen.metrics import NullSink, Sink, catalog
from smartgen.runtime.seams import Failure, FailureKind
from smartgen.runtime.snapshots import DecodeCounters, DecodeSnapshot
from smartgen.transfer import (
    DeliveredNote,
    Event,
    Failed,
    FallbackNote,
    IllegalEvent,
    LandedNote,
    ReceiverMachine,
    ReceiverReport,
    Released,
    Succeeded,
)
from smartgen.wire import (
    Close,
    Delivered,
    Fallback,
    Landed,
    Message,
    WireError,
    is_ours,
    unpack,
)

log = logging.getLogger(__name__)


class DecodeAgent:
    """Every method may be called from any thread.

    incomplete_grace_s  how long pages may still be missing after the host reported success,
                        before the request fails instead of waiting for ever
    """

    def __init__(
        self,
        *,
        layers: int,
        clock: Callable[[], float] = time.monotonic,
        sink: Sink | None = None,
        incomplete_grace_s: float = 10.0,
        debug: bool = False,
    ) -> None:
        self._layers = layers
        self._clock = clock
        self._sink: Sink = NullSink() if sink is None else sink
        self._grace_s = incomplete_grace_s
        self._debug = debug
        self._lock = threading.Lock()
        self._machines: dict[RequestKey, ReceiverMachine] = {}
        self._failures: dict[RequestKey, Failure] = {}
        self._counters = DecodeCounters()

    def open(self, key: RequestKey, *, total_pages: int, mode: Mode) -> None:
        """Call before the pages are offered to prefill. Raises ValueError for an open key."""
        with self._lock:
            if key in self._machines:
                raise ValueError(f"request {key} is open already")
            self._machines[key] = ReceiverMachine(
                key=key, at=self._clock(), layers=self._layers, total_pages=total_pages, mode=mode
            )
            self._bump(opened=1)
        self._sink.count(catalog.REQUESTS, mode=mode.value)

    def on_message(self, frames: Sequence[bytes]) -> bool:
        """True when the message was ours, readable or not. Never raises."""
        if not is_ours(frames):
            return False
        try:
            messages = unpack(frames)
        except WireError as error:
            self._malformed(str(error))
            return True
        with self._lock:
            for message in messages:
                self._take(message)
        return True

    def succeeded(self, key: RequestKey) -> None:
        """The host's own success status for this request was seen. May be repeated."""
        with self._lock:
            self._step(key, Succeeded(self._clock()))

    def failed(self, key: RequestKey, reason: str) -> None:
        """The host gave the request up."""
        with self._lock:
            self._fail(key, FailureKind.HOST, reason)

    def fallback(self, key: RequestKey, reason: str) -> None:
        """This side learned that the request goes by the host's full transfer."""
        with self._lock:
            self._fall_back(key, reason)

    def ready(self, key: RequestKey) -> bool:
        """May decoding start? False as well for a request that failed or is not open."""
        with self._lock:
            machine = self._machines.get(key)
            if machine is None:
                return False
            self._expire(machine)
            return machine.ready

    def failure(self, key: RequestKey) -> Failure | None:
        """Why the request will never be ready; None while it may."""
        with self._lock:
            machine = self._machines.get(key)
            if machine is not None:
                self._expire(machine)
            return self._failures.get(key)

    def report(self, key: RequestKey) -> ReceiverReport | None:
        """None when the request is not open."""
        with self._lock:
            machine = self._machines.get(key)
            return None if machine is None else machine.report()

    def close(self, key: RequestKey) -> ReceiverReport | None:
        """Forget the request; returns its last report. Closing twice is harmless."""
        with self._lock:
            machine = self._machines.pop(key, None)
            self._failures.pop(key, None)
            if machine is None:
                return None
            report = machine.report()
            machine.step(Released(self._clock()))
            self._bump(closed=1)
            return report

    def snapshot(self) -> DecodeSnapshot:
        with self._lock:
            return DecodeSnapshot(
                counters=self._counters,
                requests={str(key): machine.report() for key, machine in self._machines.items()},
            )

    # -- under the lock

    def _take(self, message: Message) -> None:
        now = self._clock()
        match message:
            case Landed(layer=layer, runs=pairs):
                runs = tuple(Run(start, stop) for start, stop in pairs)
                self._step(message.key, LandedNote(now, layer=layer, runs=runs))
            case Delivered():
                note = DeliveredNote(
                    now,
                    total_bytes=sum(count for _, count in message.bytes_by_path),
                    transfer_s=message.transfer_us / 1e6,
                    resent_bytes=message.resent_bytes,
                )
                self._step(message.key, note)
            case Fallback():
                self._fall_back(message.key, message.reason)
            case Close():
                self._fail(message.key, FailureKind.PEER_CLOSED, message.reason)
            case _:
                self._bump(stray=1)

    def _step(self, key: RequestKey, event: Event) -> None:
        machine = self._machines.get(key)
        if machine is None:
            self._bump(stray=1)
            return
        try:
            machine.step(event)
        except IllegalEvent as error:
            # Pages that do not exist: the two sides do not agree on the request.
            self._note_malformed(error.why)
            self._fail(key, FailureKind.INCOMPLETE, error.why)
            return
        if self._debug:
            machine.check()

    def _fall_back(self, key: RequestKey, reason: str) -> None:
        if key in self._machines:
            label, _, _ = reason.partition(":")
            self._sink.count(catalog.FALLBACKS, reason=label[:64])
        self._step(key, FallbackNote(self._clock(), reason=reason))

    def _fail(self, key: RequestKey, kind: FailureKind, detail: str) -> None:
        machine = self._machines.get(key)
        if machine is None:
            self._bump(stray=1)
            return
        if key in self._failures:
            return
        self._failures[key] = Failure(kind=kind, detail=detail)
        self._bump(failed=1)
        self._sink.count(catalog.FAILURES, reason=kind.value)
        machine.step(Failed(self._clock(), reason=detail))

    def _expire(self, machine: ReceiverMachine) -> None:
        since = machine.waiting_since
        if since is not None and self._clock() - since > self._grace_s:
            detail = (
                f"prefill reported success, but {machine.missing} pages of layers have not "
                f"landed after {self._grace_s} s"
            )
            self._fail(machine.key, FailureKind.INCOMPLETE, detail)

    def _malformed(self, why: str) -> None:
        with self._lock:
            self._note_malformed(why)

    def _note_malformed(self, why: str) -> None:
        if self._counters.malformed == 0:
            log.warning("a control message could not be used (later ones are counted): %s", why)
        self._bump(malformed=1)
        self._sink.count(catalog.MALFORMED)

    def _bump(self, **more: int) -> None:
        now = {name: getattr(self._counters, name) + count for name, count in more.items()}
        self._counters = replace(self._counters, **now)
