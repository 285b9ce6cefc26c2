"""The one seam to whatever moves bytes.

A transport belongs to one thread. It does not block on the network: `submit` hands a write over,
`poll` tells what became of writes. Every id given out is reported exactly once, whatever happens.
"""

from enum import Enum
from typing import NamedTuple, Protocol


class ErrorKind(Enum):
    LIBRARY = "library"  # the engine cannot be loaded
    VERSION = "version"  # the engine is not one we know
    SETUP = "setup"  # the engine does not start or a buffer cannot be registered
    UNREACHABLE = "unreachable"  # nobody answers for the session
    REJECTED = "rejected"  # the engine took the write for impossible
    CLOSED = "closed"


class TransportError(RuntimeError):
    """Something outside this process is missing or wrong; `remedy` says what to do about it."""

    def __init__(self, kind: ErrorKind, peer: str, remedy: str, detail: str = "") -> None:
        text = f"{kind.value}: {detail or peer}; {remedy}" if remedy else f"{kind.value}: {detail}"
        super().__init__(text)
        self.kind = kind
        self.peer = peer
        self.remedy = remedy


class Completion(NamedTuple):
    """`reason` is empty when `ok`. Ok means: the bytes are in the destination's memory."""

    write_id: int
    ok: bool
    reason: str


class Transport(Protocol):
    def register(self, addr: int, nbytes: int) -> None:
        """Make local memory usable; idempotent for the same range. Raises TransportError."""

    def submit(self, session: str, src_addr: int, dst_addr: int, nbytes: int) -> int:
        """Start one write of a contiguous range; returns its id, never 0.

        Source memory must stay as it is until the id is reported. Raises TransportError when the
        write was not started; then nothing of it is in flight.
        """

    def poll(self) -> list[Completion]:
        """Writes that are over since the last call. After a failed one, others still run."""

    def close(self) -> None:
        """Stop using the engine. Ids not reported by now never will be."""
