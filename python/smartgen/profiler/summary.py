"""Means over prompts with their 95 % intervals, and paired ratios, by bootstrap over prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_RESAMPLES: Final = 2000
_SEED: Final = 7


@dataclass(frozen=True)
class Interval:
    """A mean or ratio with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def show(self, digits: int) -> str:
        return f"{self.value:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def mean_of(values: Sequence[float]) -> Interval:
    """Of one value per prompt."""
    data = np.asarray(values, dtype=np.float64)
    means = data[_draws(len(data))].mean(1)
    return Interval(float(data.mean()), *_ends(means))


def ratio_of(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Ratio of the two means; prompts are drawn in pairs. `values[i]` and `baseline[i]` belong to one prompt."""
    above, below = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if not below.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    draws = _draws(len(above))
    bottom = below[draws].mean(1)
    ratios = above[draws].mean(1)[bottom > 0] / bottom[bottom > 0]
    return Interval(float(above.mean() / below.mean()), *_ends(ratios))


def _draws(count: int) -> np.ndarray:
    return np.random.default_rng(_SEED).integers(0, count, size=(_RESAMPLES, count))


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
