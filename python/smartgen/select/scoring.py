"""Running selectors, and refusing what they may not return."""

from collections.abc import Sequence

import numpy as np

from smartgen.select.errors import SelectError
from smartgen.select.evidence import Evidence, Floats, Selector


def score_layers(selector: Selector, evidence: Sequence[Evidence]) -> Floats:
    """[layers, blocks]: scores of all layers given, fresh; what is not finite becomes -inf."""
    if not evidence:
        raise SelectError("there is no evidence to score, must be of at least one layer")
    return np.stack([score_layer(selector, layer) for layer in evidence])


def score_layer(selector: Selector, evidence: Evidence) -> Floats:
    """[blocks]: what `selector` says of one layer, checked as in `score_layers`."""
    if evidence.tokens < 1:
        raise SelectError(
            f"a prompt of {evidence.tokens} tokens has no blocks to score, must be 1 or more"
        )
    scores = np.asarray(selector.score(evidence))
    if scores.shape != (evidence.blocks,) or not np.issubdtype(scores.dtype, np.floating):
        raise SelectError(
            f"selector {selector.name!r} returned {scores.dtype} {list(scores.shape)}, "
            f"must be float32 [{evidence.blocks}]"
        )
    return finite_scores(scores)


def finite_scores(scores: Floats) -> Floats:
    """A copy in which NaN and infinities of either sign are -inf: only what is known ranks."""
    with np.errstate(over="ignore"):
        narrow = scores.astype(np.float32)
    narrow[~np.isfinite(narrow)] = -np.inf
    return narrow
