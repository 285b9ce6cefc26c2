"""A median with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of `count` values."""

    median: float
    low: float
    high: float
    count: int

    def show(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError when there is no value."""
    if not values:
        raise ValueError("no value to take a median of")
    return Spread(
        median=statistics.median(values), low=min(values), high=max(values), count=len(values)
    )
