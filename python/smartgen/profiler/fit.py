"""From measurements to a profile's tables: means with their errors, the best signal, the layers that fetch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smartgen import profile as profiles
from smartgen.profiler.options import Options
from smartgen.select import solve_bytes

Values = dict[str, Any]


def best_signal(measured: Sequence[Values], options: Options) -> profiles.Signal:
    """The selector whose KL, averaged over prompts and over the logarithms of the fractions, is least."""
    tried: dict[str, float] = {}
    for name in options.signals:
        kl = np.array([values["signals"][name] for values in measured]).mean(axis=0)
        tried[name] = float(np.exp(np.log(np.maximum(kl, 1e-9)).mean()))
    best = min(tried, key=tried.__getitem__)
    return profiles.Signal(selector=best, window=_window(best), tried=_rounded(tried))


def sensitivity(measured: Sequence[Values], options: Options) -> profiles.Sensitivity:
    """Per length bin the power mean over its prompts; a bin without prompts takes that of all.

    The exponent is 1/2: KL is so skewed that in a plain mean a few prompts would decide alone.
    """
    ends = (*options.length_bins, None)
    bins = []
    for index, end in enumerate(ends):
        low = options.length_bins[index - 1] if index else 0
        inside = [v for v in measured if low <= v["tokens"] < (end or math.inf)]
        tables = np.array([v["sensitivity"] for v in inside or measured])
        bins.append(
            profiles.LengthBin(
                below_tokens=end,
                prompts=len(inside),
                kl=_table(np.sqrt(tables).mean(axis=0) ** 2),
                spread=_table(_standard_error(tables)),
            )
        )
    return profiles.Sensitivity(fractions=(*options.fractions, 1.0), bins=tuple(bins))


def position(measured: Sequence[Values]) -> tuple[tuple[float, ...], ...]:
    """[layers][bins], each layer's shares summing to 1."""
    mean = np.array([values["position"] for values in measured]).mean(axis=0)
    mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1e-12)
    return tuple(tuple(round(float(x), 6) for x in row) for row in mean)


def on_demand_layers(
    profile: profiles.Profile, fetched: Sequence[Values], options: Options
) -> tuple[int, ...]:
    """The layers in which fetching saves most per block, as many as the first step's allowance pays for.

    What a layer still costs at the base budget is what fetching can save there.
    """
    tokens = int(np.mean([values["tokens"] for values in fetched]))
    left = np.array(solve_bytes(profile, tokens=tokens, fraction=options.on_demand_base).layer_kl)
    share = np.array([values["first"] for values in fetched]).mean(axis=0)
    ranked = np.argsort(-left / np.maximum(share, 1e-6), kind="stable")
    count = int(np.searchsorted(share[ranked].cumsum(), options.on_demand_first_step, side="right"))
    return tuple(sorted(ranked[: max(1, count)].tolist()))


def targets(profile: profiles.Profile, options: Options) -> tuple[profiles.Target, ...]:
    """Each byte target solved for each length bin, for a prompt in the middle of the bin."""
    solved = []
    low = 512
    for length_bin in profile.sensitivity.bins:
        high = length_bin.below_tokens or 2 * max(low, 2048)
        low = min(low, high // 2)  # a first bin of short prompts
        tokens = (low + high) // 2
        for fraction in options.targets:
            budget = solve_bytes(profile, tokens=tokens, fraction=fraction)
            solved.append(
                profiles.Target(
                    fraction=fraction,
                    below_tokens=length_bin.below_tokens,
                    layer_fractions=tuple(round(n / budget.blocks, 4) for n in budget.counts),
                    predicted_kl=budget.predicted_kl,
                )
            )
        low = high
    return tuple(solved)


def ranking_correlation(one: profiles.Sensitivity, other: profiles.Sensitivity) -> float:
    """Spearman's correlation of the layers' summed KL in two profiles of one model."""
    ranks = [
        _ranks(np.array([np.sum(b.kl, axis=1) for b in s.bins]).mean(axis=0)) for s in (one, other)
    ]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


def _standard_error(tables: np.ndarray) -> np.ndarray:
    count = len(tables)
    error: np.ndarray = tables.std(axis=0, ddof=1) / math.sqrt(count) if count > 1 else tables[0]
    return error


def _table(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """With the last fraction, 1.0, which costs nothing."""
    return tuple((*(float(f"{x:.4g}") for x in row), 0.0) for row in values)


def _window(selector: str) -> int:
    """Most last queries that any of its parts looks at."""
    parts = [part.split("-") for part in selector.split("+")]
    return max((int(part[1]) for part in parts if part[0] == "window"), default=0)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}
