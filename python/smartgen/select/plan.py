"""From scores and counts to what is sent, and in which order the rest follows.

All choices are deterministic: of equals, the lower layer and then the lower block goes first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from smartgen.core import Run, mask_runs
from smartgen.select.errors import SelectError
from smartgen.select.evidence import Floats
from smartgen.select.scoring import finite_scores

SINK_BLOCKS: Final = 1
RECENT_TOKENS: Final = 16


@dataclass(frozen=True, kw_only=True)
class SelectionPlan:
    """The blocks of each layer that are sent before the first decode step.

    layers            [layers] sorted, disjoint runs of blocks
    blocks_per_layer  [layers] blocks in those runs
    fraction          share of all blocks of all layers
    """

    layers: tuple[tuple[Run, ...], ...]
    blocks_per_layer: tuple[int, ...]
    fraction: float

    def page_runs(self, *, pages_per_block: int, pages: int) -> tuple[tuple[Run, ...], ...]:
        """The same in page positions of a request of `pages` pages."""
        return tuple(
            tuple(
                Run(run.start * pages_per_block, min(run.stop * pages_per_block, pages))
                for run in runs
            )
            for runs in self.layers
        )


def always(
    tokens: int,
    block_size: int,
    sink_blocks: int = SINK_BLOCKS,
    recent_tokens: int = RECENT_TOKENS,
) -> tuple[int, ...]:
    """Blocks that every layer of every plan holds, ascending.

    The first `sink_blocks`, those with the last `recent_tokens` tokens, and a partial last block.
    """
    if tokens < 1:
        raise SelectError(f"a prompt of {tokens} tokens has no blocks to select, must be 1 or more")
    if block_size < 1 or sink_blocks < 0 or recent_tokens < 0:
        raise SelectError(
            f"block_size {block_size}, sink_blocks {sink_blocks}, recent_tokens {recent_tokens}: "
            "must be at least 1, 0 and 0"
        )
    blocks = -(-tokens // block_size)
    recent = max(0, tokens - recent_tokens) // block_size
    if tokens % block_size:
        recent = min(recent, blocks - 1)
    return tuple(sorted({*range(min(sink_blocks, blocks)), *range(recent, blocks)}))


def plan(scores: Floats, counts: Sequence[int], forced: Sequence[int]) -> SelectionPlan:
    """The `counts[layer]` best blocks of each layer, the forced ones first.

    scores  [layers, blocks]; what is not finite comes last
    counts  [layers] 0..blocks, forced blocks included; fewer than forced still sends the forced
    forced  blocks, as `always` gives them
    """
    layers, blocks = _shape(scores)
    if len(counts) != layers:
        raise SelectError(f"{len(counts)} counts for {layers} layers, must be one for each")
    wrong = next((layer for layer in range(layers) if not 0 <= counts[layer] <= blocks), None)
    if wrong is not None:
        raise SelectError(f"layer {wrong} asks for {counts[wrong]} blocks, must be 0..{blocks}")
    if not all(0 <= block < blocks for block in forced):
        raise SelectError(f"forced blocks {tuple(forced)} are outside 0..{blocks - 1}")
    ranked = finite_scores(scores)
    ranked[:, list(forced)] = np.inf
    best_first = np.argsort(-ranked, axis=1, kind="stable")
    sent = np.maximum(np.array(counts, dtype=np.int64), len(set(forced)))
    chosen = np.empty((layers, blocks), dtype=np.bool_)
    np.put_along_axis(chosen, best_first, np.arange(blocks) < sent[:, np.newaxis], axis=1)
    return SelectionPlan(
        layers=tuple(mask_runs(row) for row in chosen),
        blocks_per_layer=tuple(sent.tolist()),
        fraction=float(sent.sum()) / (layers * blocks),
    )


def order(
    scores: Floats, selected: SelectionPlan, layer_kl: Sequence[float]
) -> npt.NDArray[np.int32]:
    """[rest, 2] pairs of layer and block that `selected` leaves out, most important first.

    The KL that a layer still loses (`Budget.layer_kl`) is shared among its absent blocks in
    proportion to their scores above the layer's least; a block's share is its importance;
    of equal importance, the higher score goes first.
    """
    layers, blocks = _shape(scores)
    if not len(layer_kl) == len(selected.layers) == layers:
        raise SelectError(
            f"{len(layer_kl)} KL values and a plan of {len(selected.layers)} layers "
            f"for scores of {layers} layers, must be as many"
        )
    absent = np.ones((layers, blocks), dtype=np.bool_)
    for layer, runs in enumerate(selected.layers):
        for run in runs:
            absent[layer, run.start : run.stop] = False
    ranked = finite_scores(scores)
    importance = _shares(ranked, absent) * np.array(layer_kl, dtype=np.float64)[:, np.newaxis]
    rest = np.flatnonzero(absent)
    best_first = rest[np.lexsort((-ranked.ravel()[rest], -importance.ravel()[rest]))]
    return np.stack(np.divmod(best_first, blocks), axis=1).astype(np.int32)


def _shares(ranked: Floats, absent: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """[layers, blocks]: what part of its layer's loss each absent block stands for."""
    counted = absent & np.isfinite(ranked)
    exact = np.where(counted, ranked, np.inf).astype(np.float64)
    least = exact.min(axis=1, keepdims=True)
    above = np.zeros(ranked.shape, dtype=np.float64)
    np.subtract(exact, least, out=above, where=counted)
    even = (above.sum(axis=1, keepdims=True) == 0.0) & absent
    above[even] = 1.0
    above /= np.maximum(above.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return above


def _shape(scores: Floats) -> tuple[int, int]:
    if scores.ndim != 2 or not scores.size:
        raise SelectError(
            f"scores have shape {scores.shape}, must be [layers, blocks] with at least one of each"
        )
    return scores.shape[0], scores.shape[1]
