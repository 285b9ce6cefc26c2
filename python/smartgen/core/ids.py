"""Names of things: which request, which path, which mode.

Everything here is plain data that crosses package borders. Numbers are stable: they travel in
messages and in metrics, so a member is never renumbered or reused.
"""

from enum import Enum, IntEnum
from typing import NamedTuple


class RequestKey(NamedTuple):
    """One transfer of one request.

    room    the number both servers know the request by, 0 .. 2**63 - 1
    epoch   counts attempts: a room can be used again after a failure, a key cannot

    A tuple because it is hashed on every event.
    """

    room: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.room}/{self.epoch}"


class Path(IntEnum):
    """Why a page travels. The number is the identity of the path, `rank` its urgency."""

    ONDEMAND = 0
    PROACTIVE = 1
    SPECULATIVE = 2
    LAYERWISE = 3
    AUX = 4

    @property
    def rank(self) -> int:
        """Lower goes first."""
        return _RANK[self]

    @property
    def label(self) -> str:
        return self.name.lower()


_RANK = {
    Path.AUX: 0,
    Path.ONDEMAND: 1,
    Path.PROACTIVE: 2,
    Path.LAYERWISE: 3,
    Path.SPECULATIVE: 4,
}


class Mode(Enum):
    """How the KV of a request reaches the decode node."""

    FULL = "full"  # the host's own transfer, chunk by chunk
    LAYERWISE = "layerwise"  # everything, each layer as soon as it is computed
    SELECTIVE = "selective"  # the essential part first

    @classmethod
    def parse(cls, text: str) -> "Mode":
        """Raise ValueError, naming the allowed values, for anything else."""
        for mode in cls:
            if mode.value == text:
                return mode
        allowed = ", ".join(mode.value for mode in cls)
        raise ValueError(f"unknown transfer mode {text!r}: use one of {allowed}")
