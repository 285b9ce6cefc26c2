"""How many blocks each layer gets.

A profile says what the output loses when one layer keeps a fraction of its blocks. The losses are
taken to add up, and a block costs the same in every layer, so the best split of a budget gives
the next block to the layer that gains most by it. That greedy choice is exact for convex
curves; each curve is therefore replaced, for the choice only, by its lower convex envelope, which
is exact for the envelope, and its answers for a growing budget are nested: one sort per prompt
length serves every budget. A dynamic program over whole blocks would take seconds.

Between measured fractions the logarithm of `KL + c` is linear, with a `c` that is small against
the layer's measured KL: this meets every measured point, zero included, and does not fall off a
cliff towards the last. Below the smallest fraction its first slope goes on. The measured points
are first made non-increasing, upwards: a smaller fraction never looks better than a larger one.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from smartgen.profile import Profile, Sensitivity
from smartgen.select.errors import SelectError
from smartgen.select.plan import RECENT_TOKENS, SINK_BLOCKS, always

# `c` as a share of the KL at the largest fraction below 1, and its least value in nats.
_SMOOTH_SHARE: Final = 0.25
_SMOOTH_LEAST: Final = 1e-7
# No layer loses more; bounds what is claimed below the smallest measured fraction.
_MOST_KL: Final = 1e4
# Blocks of a layer that are decided one by one; of longer prompts, several at a time.
_MAX_STEPS: Final = 256
_CACHED_LENGTHS: Final = 64

_Doubles = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Blocks of each layer, and what sending only those should cost.

    counts    [layers]  blocks to send, forced blocks included
    layer_kl  [layers]  nats lost by leaving out the rest of the layer
    blocks    blocks of one layer of the prompt
    """

    counts: tuple[int, ...]
    layer_kl: tuple[float, ...]
    blocks: int

    @property
    def predicted_kl(self) -> float:
        """Nats, summed over layers; optimistic for small budgets."""
        return sum(self.layer_kl)

    @property
    def fraction(self) -> float:
        """Share of all blocks of all layers."""
        return sum(self.counts) / (self.blocks * len(self.counts))


def solve_bytes(
    profile: Profile,
    *,
    tokens: int,
    fraction: float,
    sink_blocks: int = SINK_BLOCKS,
    recent_tokens: int = RECENT_TOKENS,
) -> Budget:
    """The split of `fraction` of all blocks that should lose least.

    Never more than round(fraction * layers * blocks), unless the forced blocks of `always` alone
    are more. A larger fraction never takes a block from any layer.
    """
    if not 0.0 <= fraction <= 1.0:
        raise SelectError(f"fraction is {fraction}, must be 0..1")
    steps = _steps_for(profile, tokens, sink_blocks, recent_tokens)
    limit = round(fraction * profile.identity.layers * steps.blocks)
    return steps.after(int(np.searchsorted(steps.total, limit, side="right")) - 1)


def solve_kl(
    profile: Profile,
    *,
    tokens: int,
    kl: float,
    sink_blocks: int = SINK_BLOCKS,
    recent_tokens: int = RECENT_TOKENS,
) -> Budget:
    """The smallest split whose predicted KL is at most `kl` nats; all blocks predict 0."""
    if not kl >= 0.0:
        raise SelectError(f"kl is {kl} nats, must be at least 0")
    steps = _steps_for(profile, tokens, sink_blocks, recent_tokens)
    return steps.after(int(np.argmax(steps.kl <= kl)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Steps:
    """Every budget of one prompt length: row `n` is the split after the `n` best steps.

    order  int64 [steps]              layer of each step, best first
    total  int64 [steps + 1]          blocks of all layers
    kl     float64 [steps + 1]        predicted KL, non-increasing, ends at 0
    grid   int64 [points]             blocks of a layer after each of its own steps
    curve  float64 [layers, points]   KL of each layer there
    """

    blocks: int
    order: _Ints
    total: _Ints
    kl: _Doubles
    grid: _Ints
    curve: _Doubles

    def after(self, steps: int) -> Budget:
        """A negative number of steps is none: the forced blocks alone."""
        layers = len(self.curve)
        taken = np.bincount(self.order[: max(0, steps)], minlength=layers)
        return Budget(
            counts=tuple(self.grid[taken].tolist()),
            layer_kl=tuple(self.curve[np.arange(layers), taken].tolist()),
            blocks=self.blocks,
        )


def _steps_for(profile: Profile, tokens: int, sink_blocks: int, recent_tokens: int) -> _Steps:
    block_size = profile.identity.block_size
    forced = len(always(tokens, block_size, sink_blocks, recent_tokens))
    sensitivity = profile.sensitivity
    return _steps(sensitivity, sensitivity.bin_index(tokens), -(-tokens // block_size), forced)


@lru_cache(maxsize=_CACHED_LENGTHS)
def _steps(sensitivity: Sensitivity, bin_index: int, blocks: int, forced: int) -> _Steps:
    stride = max(1, -(-(blocks - forced) // _MAX_STEPS))
    grid = np.append(np.arange(forced, blocks, stride), blocks)
    curve = _curves(sensitivity, bin_index, grid / blocks)
    sizes = np.diff(grid)
    rises = np.diff(curve, axis=1)
    slopes = np.stack([_envelope_slopes(row, sizes) for row in rises])
    # Rounding must not let a step overtake the one before it.
    slopes = np.maximum.accumulate(slopes, axis=1)
    # Step by step, not layer by layer: layers that are alike grow alike.
    best = np.argsort(slopes.T, axis=None, kind="stable")
    gains = -rises.T.ravel()[best]
    layers = len(curve)
    return _Steps(
        blocks=blocks,
        order=best % layers,
        total=forced * layers + np.append(0, np.repeat(sizes, layers)[best].cumsum()),
        kl=np.append(gains[::-1].cumsum()[::-1], 0.0),
        grid=grid,
        curve=curve,
    )


def _curves(sensitivity: Sensitivity, bin_index: int, fractions: _Doubles) -> _Doubles:
    """[layers, len(fractions)]: non-increasing KL of each layer at these fractions."""
    knots = np.array(sensitivity.fractions)
    measured = np.array(sensitivity.bins[bin_index].kl, dtype=np.float64)
    monotone = np.maximum.accumulate(measured[:, ::-1], axis=1)[:, ::-1]
    smooth = np.maximum(monotone[:, -2:-1] * _SMOOTH_SHARE, _SMOOTH_LEAST)
    logs = np.log(monotone + smooth)
    segment = np.clip(np.searchsorted(knots, fractions, side="right") - 1, 0, len(knots) - 2)
    share = (fractions - knots[segment]) / (knots[segment + 1] - knots[segment])
    between = logs[:, segment] * (1 - share) + logs[:, segment + 1] * share
    curves: _Doubles = np.exp(np.minimum(between, np.log(_MOST_KL))) - smooth
    curves[:, -1] = 0.0  # everything: exactly nothing lost
    # Rounding, too, must not make more blocks look worse.
    return np.minimum.accumulate(np.maximum(curves, 0.0), axis=1)


def _envelope_slopes(rises: _Doubles, sizes: _Ints) -> _Doubles:
    """[steps]: slopes of the greatest convex curve below one that rises by `rises`.

    A step that falls more steeply than the one before it is pooled with it, and so on backwards.
    """
    slopes: _Doubles = rises / sizes
    if (np.diff(slopes) >= 0).all():
        return slopes
    heights: list[float] = []
    widths: list[int] = []
    members: list[int] = []
    for height, width in zip(rises.tolist(), sizes.tolist(), strict=True):
        count = 1
        while heights and height * widths[-1] <= heights[-1] * width:
            height += heights.pop()
            width += widths.pop()
            count += members.pop()
        heights.append(height)
        widths.append(width)
        members.append(count)
    return np.repeat(np.array(heights) / widths, members)
