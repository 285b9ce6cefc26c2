"""Everything the prefill agent does, without its thread.

Owns the sender machines and links; carries out what machines ask for and feeds back what became of
it. All methods are called from one thread; none blocks but for what the host's control sender and
callbacks take.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from smartgen.core import Destination, KVGeometry, Mode, RequestKey
from smartgen.runtime.links import FAILURES_OF_A_LOST_PEER, Link, LinkWrite, SendingRequest
from smartgen.runtime.outbox import Outbox
from smartgen.runtime.recorder import Recorder
from smartgen.runtime.seams import Failure, FailureKind, PrefillCallbacks
from smartgen.runtime.snapshots import PrefillSnapshot
from smartgen.runtime.writes import Progress, Writes
from smartgen.transfer import (
    Acked,
    Broken,
    Command,
    DropQueued,
    Enqueue,
    Event,
    Granted,
    Outcome,
    Pacer,
    Pacing,
    ReportDelivered,
    ReportDrained,
    ReportFailed,
    SenderMachine,
    Sending,
    SendLanded,
    TransferReport,
    Write,
    WriteFailed,
)
from smartgen.transport.base import Transport
from smartgen.wire import Delivered

log = logging.getLogger(__name__)

HOUSEKEEPING_S: Final = 0.05
GAUGES_S: Final = 1.0
LINK_MEMORY_S: Final = 600.0  # what is known of a link is forgotten after this long without use


class SendingEngine:
    """See PrefillAgent for the meaning of the settings."""

    def __init__(
        self,
        *,
        transport: Transport,
        outbox: Outbox,
        geometry: KVGeometry,
        callbacks: PrefillCallbacks,
        recorder: Recorder,
        clock: Callable[[], float],
        pacing: Pacing,
        write_deadline_s: float,
        debug: bool,
    ) -> None:
        self._outbox = outbox
        self._geometry = geometry
        self._callbacks = callbacks
        self._recorder = recorder
        self._clock = clock
        self._pacing = pacing
        self._write_deadline_s = write_deadline_s
        self._debug = debug
        self._requests: dict[RequestKey, SendingRequest] = {}
        self._links: dict[str, Link] = {}
        self._writes = Writes(transport, recorder)
        self._followups: deque[tuple[SendingRequest, Event]] = deque()
        self._housekept_at = self._gauged_at = clock()
        self._gauged_busy = False

    # -- one turn of the agent

    @property
    def busy(self) -> bool:
        """Is a write running?"""
        return bool(self._writes)

    def patience(self) -> float | None:
        """Seconds until there is something to do without a post; None means never."""
        if self._writes:
            links = self._links.values()
            return min(link.pacer.poll_interval_s for link in links if link.writes)
        due = self._outbox.next_due
        return None if due is None else max(0.0, due - self._clock())

    def turn(self) -> None:
        """Look at running writes, grant what fits, send what is due."""
        now = self._clock()
        if self._writes:
            for progress in self._writes.poll(now):
                self._progressed(progress, now)
            for link in self._links.values():
                link.pacer.polled(now)
        if now - self._housekept_at >= HOUSEKEEPING_S:
            self._housekept_at = now
            self._housekeep(now)
        for link in list(self._links.values()):
            self._grant(link)
        if self._gauged_busy and not self._writes:
            # Nobody may wake this thread for long: the last values must be those of rest.
            self._gauge(now)
        self._flush(self._clock())

    # -- requests

    def open(
        self,
        key: RequestKey,
        at: float,
        destination: Destination,
        src_entries: tuple[int, ...],
        mode: Mode,
    ) -> None:
        """A key that is open already is refused, and stays as it is."""
        if key in self._requests:
            log.error("request %s is open already", key)
            self._recorder.internal_error()
            return
        self._recorder.opened(mode)
        try:
            machine = SenderMachine(
                key=key, geometry=self._geometry, src_entries=src_entries, destination=destination
            )
        except ValueError as error:
            failure = Failure(kind=FailureKind.INTERNAL, detail=str(error))
            self._recorder.failed(failure)
            self._call(self._callbacks.failed, key, failure)
            self._call(self._callbacks.drained, key)
            return
        link = self._links.get(destination.session)
        if link is None:
            link = Link(session=destination.session, pacer=Pacer(self._pacing), used_at=at)
            self._links[destination.session] = link
        request = SendingRequest(key=key, machine=machine, destination=destination, link=link)
        self._requests[key] = link.requests[key] = request

    def post(self, key: RequestKey, event: Event) -> None:
        """An event for one request; counted and dropped when it is not open."""
        request = self._requests.get(key)
        if request is None:
            self._recorder.unknown_post()
            return
        self._step(request, event)

    def abort(self, key: RequestKey, event: Event) -> None:
        """As `post`, but always answered by `drained`."""
        if key in self._requests:
            self.post(key, event)
        else:
            self._recorder.unknown_post()
            self._call(self._callbacks.drained, key)

    def break_request(self, key: RequestKey, at: float, detail: str) -> None:
        """Something on this side went wrong with the request."""
        self._recorder.internal_error()
        request = self._requests.get(key)
        if request is not None:
            self._break(request, at, FailureKind.INTERNAL, detail)

    def break_everything(self, at: float, detail: str) -> None:
        for link in list(self._links.values()):
            self._break_all(link, at, FailureKind.STOPPED, detail)

    def snapshot(self) -> PrefillSnapshot:
        return PrefillSnapshot(
            counters=self._recorder.counters,
            links=tuple(link.snapshot() for link in self._links.values()),
            requests={
                str(key): (request.machine.state.value, request.machine.resident)
                for key, request in self._requests.items()
            },
        )

    def check(self) -> None:
        """Assert that links, writes and requests tell the same story."""
        open_writes = [write for link in self._links.values() for write in link.writes.values()]
        assert len(self._writes) == sum(write.unfinished for write in open_writes)
        assert len(self._requests) == sum(len(link.requests) for link in self._links.values())
        for link in self._links.values():
            link.queue.check()
            link.pacer.check()
            assert link.pacer.in_flight_bytes == sum(w.nbytes for w in link.writes.values())
        for request in self._requests.values():
            request.machine.check()

    # -- events into machines, commands out of them

    def _step(self, request: SendingRequest, event: Event) -> None:
        """One event and all that follows from it."""
        self._followups.append((request, event))
        while self._followups:
            request, event = self._followups.popleft()
            try:
                commands = request.machine.step(event)
                if self._debug:
                    request.machine.check()
                for command in commands:
                    self._perform(request, command, event.at)
            except Exception as error:
                self._machine_failed(request, event, error)

    def _machine_failed(self, request: SendingRequest, event: Event, error: Exception) -> None:
        log.error("request %s: internal error", request.key, exc_info=error)
        self._recorder.internal_error()
        if isinstance(event, Broken):
            return  # cannot be broken further; its writes are followed all the same
        request.kind = FailureKind.INTERNAL
        detail = str(error).partition("\n")[0]
        self._followups.append((request, Broken(event.at, reason=detail)))

    def _perform(self, request: SendingRequest, command: Command, at: float) -> None:
        endpoint = request.destination.endpoint
        match command:
            case Enqueue(spans=spans):
                request.link.queue.push(request.key, spans)
            case DropQueued():
                request.link.queue.drop(request.key)
            case Write():
                self._launch(request, command)
            case SendLanded(layer=layer, runs=runs):
                self._outbox.landed(at, endpoint, request.key, layer, runs)
            case ReportDelivered(report=report):
                message = _delivered_message(request.key, report)
                self._outbox.delivered(at, endpoint, request.key, message, report)
            case ReportFailed(reason=reason):
                self._report_failure(request, reason)
            case ReportDrained():
                self._drained(request)

    # -- writes

    def _grant(self, link: Link) -> None:
        # A run of n scattered pages needs n descriptors for each entry of the layer.
        per_page = self._geometry.entries_per_layer
        while link.queue:
            nbytes, descriptors = link.pacer.allowance()
            if nbytes == 0:
                return
            pages = max(1, descriptors // per_page)
            turn = link.queue.pop(max_bytes=nbytes, max_pages=pages)
            if turn is None:
                return
            self._step(self._requests[turn.key], Granted(self._clock(), span=turn.span))

    def _launch(self, request: SendingRequest, command: Write) -> None:
        now = self._clock()
        write = LinkWrite(
            request=request, write_id=command.write_id, nbytes=command.nbytes, launched_at=now
        )
        self._writes.launch(write, command.blocks)
        if write.failure:
            self._write_broke(write, now)
        if not write.descriptors:
            over = WriteFailed(now, write_id=write.write_id, reason=write.failure)
            self._followups.append((request, over))

    def _progressed(self, progress: Progress, now: float) -> None:
        write = progress.write
        if progress.broke:
            self._write_broke(write, now)
        if write.unfinished:
            return
        if write.failure:
            over: Event = WriteFailed(now, write_id=write.write_id, reason=write.failure)
        else:
            over = Acked(now, write_id=write.write_id)
        self._step(write.request, over)

    def _write_broke(self, write: LinkWrite, now: float) -> None:
        """The first failed descriptor decides; the write is over when the others are final."""
        link = write.request.link
        self._break(write.request, now, FailureKind.WRITE_FAILED, write.failure)
        link.failures += 1
        if link.failures >= FAILURES_OF_A_LOST_PEER:
            link.failures = 0
            self._break_all(link, now, FailureKind.PEER_LOST, write.failure)

    # -- endings

    def _break(self, request: SendingRequest, at: float, kind: FailureKind, detail: str) -> None:
        if request.machine.state in (Sending.SETTLING, Sending.CLOSED):
            return
        request.kind = kind
        self._step(request, Broken(at, reason=detail))

    def _break_all(self, link: Link, at: float, kind: FailureKind, detail: str) -> None:
        for request in list(link.requests.values()):
            self._break(request, at, kind, detail)

    def _report_failure(self, request: SendingRequest, detail: str) -> None:
        if request.failed:
            return
        request.failed = True
        failure = Failure(kind=request.kind, detail=detail)
        self._recorder.failed(failure)
        log.warning("request %s failed: %s", request.key, failure)
        self._call(self._callbacks.failed, request.key, failure)

    def _drained(self, request: SendingRequest) -> None:
        if request.machine.outcome is Outcome.DELIVERED:
            return  # the peer has to be told first, see _flush
        if request.machine.outcome is Outcome.ABORTED:
            self._recorder.aborted()
        self._forget(request)

    def _forget(self, request: SendingRequest) -> None:
        del self._requests[request.key]
        del request.link.requests[request.key]
        self._call(self._callbacks.drained, request.key)

    def _flush(self, now: float) -> None:
        due = self._outbox.next_due
        if due is None or due > now:
            return
        flushed = self._outbox.flush(now)
        for key, report in flushed.reports:
            request = self._requests[key]
            self._recorder.delivered(report)
            if not self._call(self._callbacks.delivered, key, report):
                request.kind = FailureKind.HOST
                self._report_failure(request, "the host's delivered callback raised")
            self._forget(request)
        for key, detail in flushed.unreachable:
            missed = self._requests.get(key)
            if missed is None:
                continue
            if missed.machine.outcome is Outcome.DELIVERED:
                missed.kind = FailureKind.CONTROL
                self._report_failure(missed, detail)
                self._forget(missed)
            else:
                self._break(missed, now, FailureKind.CONTROL, detail)

    def _call(self, callback: Callable[..., None], *args: object) -> bool:
        try:
            callback(*args)
        except Exception:
            self._recorder.internal_error()
            log.exception("callback for request %s raised", args[0])
            return False
        return True

    # -- now and then

    def _housekeep(self, now: float) -> None:
        for link in list(self._links.values()):
            for write in link.overdue(now - self._write_deadline_s):
                if not write.expired:
                    write.expired = True
                    detail = f"a write to {link.session} took over {self._write_deadline_s} s"
                    self._break(write.request, now, FailureKind.WRITE_DEADLINE, detail)
            if link.stalled:
                detail = f"{link.session} acknowledges nothing"
                self._break_all(link, now, FailureKind.WRITE_DEADLINE, detail)
            if link.idle and now - link.used_at > LINK_MEMORY_S:
                del self._links[link.session]
        if now - self._gauged_at >= GAUGES_S:
            self._gauge(now)

    def _gauge(self, now: float) -> None:
        self._gauged_at, self._gauged_busy = now, bool(self._writes)
        self._recorder.gauges(self._links.values())


def _delivered_message(key: RequestKey, report: TransferReport) -> Delivered:
    return Delivered.of(
        key,
        bytes_by_path=report.bytes_by_path,
        transfer_us=int(report.transfer_s * 1e6),
        total_pages=report.total_pages,
        resent_bytes=report.resent_bytes,
    )
