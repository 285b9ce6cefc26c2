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
from smartgen.runtime.statistics import (
    BLOCK_TOKENS,
    SELECTOR,
    LayerRows,
    PromptStatistics,
    StatisticsSpec,
)

__all__ = [
    "BLOCK_TOKENS",
    "SELECTOR",
    "ControlSender",
    "DecodeAgent",
    "DecodeCounters",
    "DecodeSnapshot",
    "Failure",
    "FailureKind",
    "LayerRows",
    "LinkSnapshot",
    "PrefillAgent",
    "PrefillCallbacks",
    "PrefillCounters",
    "PrefillSnapshot",
    "PromptStatistics",
    "StatisticsSpec",
]
