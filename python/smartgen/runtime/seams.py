"""What the host provides to the agents, and the words in which they answer."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from smartgen.core import RequestKey
from smartgen.transfer import TransferReport


class FailureKind(Enum):
    """Also the `reason` label of the failure counter: append only."""

    WRITE_FAILED = "write_failed"
    WRITE_DEADLINE = "write_deadline"
    PEER_LOST = "peer_lost"
    CONTROL = "control_unreachable"
    INTERNAL = "internal"
    STOPPED = "stopped"
    INCOMPLETE = "incomplete"
    PEER_CLOSED = "peer_closed"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one request did not make it. `detail` is one sentence for a log."""

    kind: FailureKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"


class ControlSender(Protocol):
    def send(self, endpoint: tuple[str, int], frames: list[bytes]) -> None:
        """Queue one control message to the decode node. May raise; must not block for seconds.

        Messages to one endpoint must arrive in the order of the calls.
        """


class PrefillCallbacks(Protocol):
    """Called on the agent's thread. What they raise is logged and fails that request only.

    For every opened request: `delivered` or `failed` at most once (neither after an abort), then
    `drained`, exactly once and last. An abort of a request that is not open is answered by
    `drained` as well, so that an abort always has an answer.
    """

    def delivered(self, key: RequestKey, report: TransferReport) -> None:
        """All KV and aux is in the decode node's memory, and it was told."""

    def failed(self, key: RequestKey, failure: Failure) -> None:
        """The request cannot be delivered. Writes may still be running: do not free pages."""

    def drained(self, key: RequestKey) -> None:
        """No write of this request is running: pages may be freed on both nodes."""
