"""Which KV blocks to send first.

Owns selectors (evidence -> scores), the budget (profile + bytes -> blocks per layer) and the plan
(scores + budget -> runs of blocks). Pure: no clock, no I/O, no torch; the only outside world is
the entry points of selector plugins. Blocks are counted from 0 within a request; a layer's blocks
all cost the same.

    evidence   one Evidence per layer
    scores   = score_layers(selector("window-16-max"), evidence)
    budget   = solve_bytes(profile, tokens=tokens, fraction=0.2)
    selected = plan(scores, budget.counts, always(tokens, block_size))
    rest     = order(scores, selected, budget.layer_kl)
"""

from smartgen.select.budget import Budget, solve_bytes, solve_kl
from smartgen.select.errors import MissingEvidence, SelectError, UnknownSelector
from smartgen.select.evidence import Evidence, Floats, Selector
from smartgen.select.plan import (
    RECENT_TOKENS,
    SINK_BLOCKS,
    SelectionPlan,
    always,
    order,
    plan,
)
from smartgen.select.registry import PLUGIN_GROUP, known_selectors, selector
from smartgen.select.scoring import score_layers

__all__ = [
    "PLUGIN_GROUP",
    "RECENT_TOKENS",
    "SINK_BLOCKS",
    "Budget",
    "Evidence",
    "Floats",
    "MissingEvidence",
    "SelectError",
    "SelectionPlan",
    "Selector",
    "UnknownSelector",
    "always",
    "known_selectors",
    "order",
    "plan",
    "score_layers",
    "selector",
    "solve_bytes",
    "solve_kl",
]
