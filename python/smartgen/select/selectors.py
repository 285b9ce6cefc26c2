"""The built-in rules.

A rule takes evidence of one layer and returns float32 [blocks]. What a rule needs beyond evidence
(a seed, a profile) is bound when it is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from smartgen.profile import Profile
from smartgen.select.errors import SelectError
from smartgen.select.evidence import Evidence, Floats, Selector
from smartgen.select.scoring import score_layer

Rule = Callable[[Evidence], Floats]

# From 0.2 to 1 it makes little difference.
_NEXT_SHARE: Final = np.float32(0.4)


@dataclass(frozen=True)
class RuleSelector:
    """A named rule."""

    name: str
    rule: Rule

    def score(self, evidence: Evidence) -> Floats:
        return self.rule(evidence)


@dataclass(frozen=True)
class Combination:
    """Sum of the ranks that its parts give, all of equal weight.

    Ranks are scaled to 0..1 within the layer, equal scores share their mean rank, and scores that
    are not finite share the lowest.
    """

    name: str
    parts: tuple[Selector, ...]

    def score(self, evidence: Evidence) -> Floats:
        ranks = [_ranks(score_layer(part, evidence)) for part in self.parts]
        total: Floats = np.sum(ranks, axis=0, dtype=np.float32)
        return total


def _ranks(scores: Floats) -> Floats:
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    middle = sizes.cumsum() - (sizes + 1) / 2
    return (middle[group] / max(1, len(scores) - 1)).astype(np.float32)


def random(seed: int) -> Rule:
    """The same for every request of a length; another order in each layer."""

    def rule(evidence: Evidence) -> Floats:
        drawn = np.random.default_rng((seed, evidence.layer))
        return drawn.random(evidence.blocks, dtype=np.float32)

    return rule


def sinks_recent(evidence: Evidence) -> Floats:
    """The first block, then the latest."""
    scores = np.arange(evidence.blocks, dtype=np.float32)
    scores[0] = evidence.blocks
    return scores


def accumulated(evidence: Evidence) -> Floats:
    """H2O: all attention a block ever got, mean over heads."""
    return _head_mean(evidence.accumulated_mass())


def accumulated_mean(evidence: Evidence) -> Floats:
    """The same per query that could see the block."""
    mean: Floats = _head_mean(evidence.accumulated_mass()) / np.maximum(evidence.viewers(), 1)
    return mean


def position(profile: Profile) -> Rule:
    """What the profile knows of the tokens' relative positions, whatever the prompt says."""
    importance = np.array(profile.position, dtype=np.float64)
    layers, bins = importance.shape
    running = np.concatenate([np.zeros((layers, 1)), importance.cumsum(axis=1)], axis=1)
    edges = np.linspace(0.0, 1.0, bins + 1)

    def rule(evidence: Evidence) -> Floats:
        if evidence.layers != layers:
            raise SelectError(
                f"the profile has {layers} layers and the model {evidence.layers}; "
                "use the profile of this model"
            )
        starts = np.arange(evidence.blocks + 1) * evidence.block_size
        places = np.minimum(starts, evidence.tokens) / evidence.tokens
        return np.diff(np.interp(places, edges, running[evidence.layer])).astype(np.float32)

    return rule


def digest(kind: str) -> Rule:
    """The last prompt query's attention as digests of this kind show it, mean over heads."""

    def rule(evidence: Evidence) -> Floats:
        return _head_mean(evidence.digest_mass(kind))

    return rule


def oracle(evidence: Evidence) -> Floats:
    """What the answer will look at, mean over heads. An upper bound, for test harnesses."""
    return _head_mean(evidence.decoded_mass())


def oracle_max(evidence: Evidence) -> Floats:
    """The same, by the head that looks most."""
    scores: Floats = evidence.decoded_mass().max(axis=0)
    return scores


def _head_mean(mass: Floats) -> Floats:
    """From [heads, blocks] to [blocks]."""
    mean: Floats = mass.mean(axis=0)
    return mean


# From [queries, heads, blocks] to [blocks].
POOLS: Final[dict[str, Callable[[Floats], Floats]]] = {
    "mean": lambda mass: mass.mean(axis=(0, 1)),  # over queries and heads
    "max": lambda mass: mass.max(axis=(0, 1)),  # over queries and heads
    "headmax": lambda mass: mass.mean(axis=0).max(axis=0),  # mean over queries, max over heads
    "meanmax": lambda mass: mass.max(axis=0).mean(axis=0),  # max over queries, mean over heads
}


def window(queries: int, pool: str, *, next_block: bool) -> Rule:
    """Attention of the last prompt queries (SnapKV and its kin).

    next_block  a block also counts by the one before it. Heads that copy attend to what follows a
                match: the question finds the sentence, the answer reads on into the next block.
    """
    pooled = POOLS[pool]

    def rule(evidence: Evidence) -> Floats:
        scores = pooled(evidence.window_mass(queries))
        return reading_on(scores) if next_block else scores

    return rule


def reading_on(scores: Floats) -> Floats:
    """Each block's score or a part of its predecessor's, whichever is more; [blocks] both.

    A score that is not finite says nothing of the block behind it.
    """
    before = np.where(np.isfinite(scores[:-1]), _NEXT_SHARE * scores[:-1], -np.inf)
    spread = scores.astype(np.float32)
    spread[1:] = np.maximum(spread[1:], before)
    return spread
