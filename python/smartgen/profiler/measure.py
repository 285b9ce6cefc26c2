"""What a profile is fitted from, prompt by prompt. Every result is plain JSON, ready for a journal."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smartgen import select
from smartgen.ops import Backend
from smartgen.profile import Profile
from smartgen.profiler.evidence import LayerEvidence
from smartgen.profiler.policies import Fixed, OneLayer
from smartgen.profiler.sample import Sample, Sampler
from smartgen.profiler.scoring import compare

Values = dict[str, Any]


class Measure:
    """The measurements on one sample, all with blocks ranked by `selector`."""

    def __init__(self, sampler: Sampler, ops: Backend, sample: Sample) -> None:
        self._sampler = sampler
        self._sample = sample
        layers = sampler.model.shape.layers
        self._evidence = [LayerEvidence(sample, ops, layer, layers) for layer in range(layers)]
        self._forced = select.always(sample.tokens, sample.block_size)

    def signals(
        self, names: Sequence[str], fractions: Sequence[float], profile: Profile | None
    ) -> dict[str, list[float]]:
        """Mean KL of each selector at each fraction of all blocks, split by the profile, or evenly without one."""
        budgets = [self._counts(fraction, profile) for fraction in fractions]
        return {
            name: [self._kl(Fixed(self._masks(name, counts))) for counts in budgets]
            for name in names
        }

    def sensitivity(self, selector: str, fractions: Sequence[float]) -> list[list[float]]:
        """[layers][fractions] mean KL with only that layer restricted; nothing before it is computed again."""
        masks = [self._masks(selector, self._counts(fraction, None)) for fraction in fractions]
        return [
            [self._kl(OneLayer(layer, mask[layer]), layer) for mask in masks]
            for layer in range(len(self._evidence))
        ]

    def position(self, queries: int, bins: int) -> list[list[float]]:
        """[layers][bins] mean share of the window's attention by relative position."""
        edges = np.linspace(0.0, self._sample.tokens, bins + 1)
        starts = np.arange(self._sample.blocks + 1) * self._sample.block_size
        places = np.minimum(starts, self._sample.tokens)
        shares = []
        for evidence in self._evidence:
            mass = evidence.window_mass(queries).mean(axis=(0, 1), dtype=np.float64)
            running = np.concatenate([[0.0], np.nan_to_num(mass).cumsum()])
            shares.append(np.diff(np.interp(edges, places, running)).tolist())
        return shares

    def _counts(self, fraction: float, profile: Profile | None) -> Sequence[int]:
        """Blocks of each layer."""
        if profile is not None:
            budget = select.solve_bytes(profile, tokens=self._sample.tokens, fraction=fraction)
            return budget.counts
        count = max(len(self._forced), round(fraction * self._sample.blocks))
        return [count] * len(self._evidence)

    def _masks(self, selector: str, counts: Sequence[int]) -> Tensor:
        """bool [layers, blocks]"""
        scores = select.score_layers(select.selector(selector), self._evidence)
        plan = select.plan(scores, counts, self._forced)
        return plan_masks(plan, self._sample.blocks)

    def _kl(self, visible: Fixed | OneLayer, first_layer: int = 0) -> float:
        log_probs = self._sampler.rows(self._sample, visible, first_layer)
        kl = compare(self._sample.log_probs, log_probs).kl
        return sum(kl) / len(kl)


def plan_masks(plan: select.SelectionPlan, blocks: int) -> Tensor:
    """bool [layers, blocks] of a plan."""
    masks = torch.zeros(len(plan.layers), blocks, dtype=torch.bool)
    for mask, runs in zip(masks, plan.layers, strict=True):
        for run in runs:
            mask[run.start : run.stop] = True
    return masks
