"""A transport inside one process, for tests: same contract, no network.

Bytes are copied when the write ends, as late as a real engine may read them. A link of
`rate_bytes_per_s` carries one write after the other; `latency_s` is added to each. Faults are
asked for by name: `fail_next`, `stall`, `lose`.
"""

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass

from smartgen.transport.base import Completion, ErrorKind, TransportError


@dataclass(slots=True, kw_only=True)
class _Pending:
    write_id: int
    session: str
    src_addr: int
    dst_addr: int
    nbytes: int
    due: float


class LoopbackTransport:
    """`clock` may be virtual; with no rate and latency a write is over at the next poll.

    reorder   completions that are due together come in random order
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rate_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        reorder: bool = False,
        seed: int = 0,
    ) -> None:
        self.submitted_bytes = 0
        self._clock = clock
        self._rate = rate_bytes_per_s
        self._latency = latency_s
        self._reorder = reorder
        self._random = random.Random(seed)
        self._pending: dict[int, _Pending] = {}
        self._regions: set[tuple[int, int]] = set()
        self._next_id = 1
        self._free_at = 0.0
        self._failing = 0
        self._stalled: set[str] = set()
        self._lost: set[str] = set()
        self._closed = False

    def register(self, addr: int, nbytes: int) -> None:
        self._regions.add((addr, nbytes))

    def submit(self, session: str, src_addr: int, dst_addr: int, nbytes: int) -> int:
        if self._closed:
            raise TransportError(ErrorKind.CLOSED, session, "", "the transport is closed")
        if session in self._lost:
            raise TransportError(
                ErrorKind.UNREACHABLE, session, "check that the decode server runs"
            )
        now = self._clock()
        carried = nbytes / self._rate if self._rate else 0.0
        self._free_at = max(self._free_at, now) + carried
        write_id, self._next_id = self._next_id, self._next_id + 1
        self._pending[write_id] = _Pending(
            write_id=write_id,
            session=session,
            src_addr=src_addr,
            dst_addr=dst_addr,
            nbytes=nbytes,
            due=self._free_at + self._latency,
        )
        self.submitted_bytes += nbytes
        return write_id

    def poll(self) -> list[Completion]:
        now = self._clock()
        due = [w for w in self._pending.values() if w.due <= now and w.session not in self._stalled]
        if self._reorder:
            self._random.shuffle(due)
        return [self._finish(write) for write in due]

    def close(self) -> None:
        self._closed = True
        self._pending.clear()

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def fail_next(self, count: int = 1) -> None:
        """The next `count` writes to end do so without their bytes."""
        self._failing += count

    def stall(self, session: str) -> None:
        """Writes to this session do not end until `resume`."""
        self._stalled.add(session)

    def resume(self, session: str) -> None:
        self._stalled.discard(session)

    def lose(self, session: str) -> None:
        """The peer is gone: running writes fail, new ones cannot be started."""
        self._lost.add(session)

    def _finish(self, write: _Pending) -> Completion:
        del self._pending[write.write_id]
        if write.session in self._lost:
            return Completion(write.write_id, False, "peer is gone")
        if self._failing:
            self._failing -= 1
            return Completion(write.write_id, False, "injected fault")
        ctypes.memmove(write.dst_addr, write.src_addr, write.nbytes)
        return Completion(write.write_id, True, "")
