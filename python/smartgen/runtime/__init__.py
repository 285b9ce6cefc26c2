"""The agents: what the host's hooks talk to."""

from smartgen.runtime.decode import DecodeAgent
from smartgen.runtime.prefill import PrefillAgent
from smartgen.runtime.seams import ControlSender, Failure, FailureKind, PrefillCallbacks
from smartgen.runtime.snapshots import (
    DecodeCounters,
    DecodeSnapshot,
    LinkSnapshot,
    PrefillCounters,
    PrefillSnapshot,
)

__all__ = [
    "ControlSender",
    "DecodeAgent",
    "DecodeCounters",
    "DecodeSnapshot",
    "Failure",
    "FailureKind",
    "LinkSnapshot",
    "PrefillAgent",
    "PrefillCallbacks",
    "PrefillCounters",
    "PrefillSnapshot",
]
