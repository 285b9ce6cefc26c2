"""How measurements are made and written down: prompts, settings, spread, result files.

The rules of every benchmark in one place: seeded prompts that share no prefix, medians with their
spread, and result files that name machine, versions, seed and commit.
"""

from smartgen_lab.measure.cpu import cpu_seconds, cpu_shares
from smartgen_lab.measure.fingerprint import fingerprint
from smartgen_lab.measure.kv import WIRE_OVERHEAD, kv_shape, prefill_seconds
from smartgen_lab.measure.limits import Limits
from smartgen_lab.measure.pages import flush_cache, free_tokens, wait_for_free_tokens
from smartgen_lab.measure.prompts import Prompts
from smartgen_lab.measure.records import Records, header
from smartgen_lab.measure.scenario import Scenario, load_scenario
from smartgen_lab.measure.spread import Spread, spread

__all__ = [
    "WIRE_OVERHEAD",
    "Limits",
    "Prompts",
    "Records",
    "Scenario",
    "Spread",
    "cpu_seconds",
    "cpu_shares",
    "fingerprint",
    "flush_cache",
    "free_tokens",
    "header",
    "kv_shape",
    "load_scenario",
    "prefill_seconds",
    "spread",
    "wait_for_free_tokens",
]
