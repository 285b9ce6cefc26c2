"""What the prefill side keeps per request, per write and per destination session."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from smartgen.core import Destination, RequestKey
from smartgen.runtime.seams import FailureKind
from smartgen.runtime.snapshots import LinkSnapshot
from smartgen.transfer import LinkQueue, Pacer, SenderMachine

# After this many failures in a row the peer is taken for gone: the engine answers each further
# write to a dead peer late.
FAILURES_OF_A_LOST_PEER: Final = 3


@dataclass(slots=True, kw_only=True, eq=False)
class SendingRequest:
    """`kind` is the cause under which the machine's failure report will be published."""

    key: RequestKey
    machine: SenderMachine
    destination: Destination
    link: "Link"
    kind: FailureKind = FailureKind.INTERNAL
    failed: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class LinkWrite:
    """One write of a machine: some descriptors, over when all of them are final."""

    request: SendingRequest
    write_id: int
    nbytes: int
    launched_at: float
    descriptors: int = 0
    unfinished: int = 0
    failure: str = ""
    expired: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Link:
    """Queue, window and open writes (oldest first) of one session."""

    session: str
    pacer: Pacer
    used_at: float
    queue: LinkQueue = field(default_factory=LinkQueue)
    requests: dict[RequestKey, SendingRequest] = field(default_factory=dict)
    writes: dict[int, LinkWrite] = field(default_factory=dict)
    acked_at: float = float("-inf")
    failures: int = 0
    _tickets: int = 0

    def launch(self, write: LinkWrite) -> int:
        """Count a write in; returns the ticket to `settle` it with."""
        self._tickets += 1
        self.writes[self._tickets] = write
        self.used_at = write.launched_at
        self.pacer.launched(write.launched_at, nbytes=write.nbytes, descriptors=write.descriptors)
        return self._tickets

    def settle(self, ticket: int, at: float) -> None:
        """All descriptors of this write are final."""
        write = self.writes.pop(ticket)
        ok = not write.failure
        self.used_at = at
        self.pacer.settled(
            at,
            nbytes=write.nbytes,
            descriptors=write.descriptors,
            latency_s=at - write.launched_at,
            ok=ok,
        )
        if ok:
            self.acked_at, self.failures = at, 0

    def overdue(self, before: float) -> Iterator[LinkWrite]:
        """Open writes launched before that time, oldest first."""
        for write in self.writes.values():
            if write.launched_at >= before:
                return
            yield write

    @property
    def stalled(self) -> bool:
        """Its oldest write is past its deadline and nothing was acknowledged since its launch."""
        oldest = next(iter(self.writes.values()), None)
        return oldest is not None and oldest.expired and self.acked_at <= oldest.launched_at

    @property
    def idle(self) -> bool:
        return not self.requests and not self.writes

    def snapshot(self) -> LinkSnapshot:
        return LinkSnapshot(
            session=self.session,
            requests=len(self.requests),
            queued_bytes=self.queue.nbytes,
            in_flight_bytes=self.pacer.in_flight_bytes,
            in_flight_writes=len(self.writes),
            rate_bytes_per_s=self.pacer.rate_bytes_per_s,
            chunk_bytes=self.pacer.chunk_bytes,
            window_bytes=self.pacer.window_bytes,
            stalled=self.stalled,
        )
