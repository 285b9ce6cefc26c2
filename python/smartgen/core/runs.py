"""Runs of page positions, and how scattered pages become few writes.

A position counts the pages of a request from 0; a run is a half-open range of positions.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smartgen.core.geometry import Pages


class Run(NamedTuple):
    """Positions start .. stop - 1. A tuple because messages carry thousands of them."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def merge_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Sorted, disjoint runs that cover the same positions; adjacent ones join, empty ones go."""
    merged: list[Run] = []
    for run in sorted(runs):
        if run.start >= run.stop:
            continue
        if merged and run.start <= merged[-1].stop:
            last = merged[-1]
            merged[-1] = Run(last.start, max(last.stop, run.stop))
        else:
            merged.append(run)
    return tuple(merged)


def split_run(run: Run, limit: int) -> Iterator[Run]:
    """Consecutive parts of at most `limit` positions each."""
    if limit < 1:
        raise ValueError(f"runs cannot be split into parts of {limit} positions")
    for start in range(run.start, run.stop, limit):
        yield Run(start, min(start + limit, run.stop))


def mask_runs(mask: npt.NDArray[np.bool_], *, offset: int = 0) -> tuple[Run, ...]:
    """The runs of true values of a one-dimensional mask, shifted by `offset`."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)) + offset
    bounds = edges.tolist()
    return tuple(Run(start, stop) for start, stop in zip(bounds[::2], bounds[1::2], strict=True))


def contiguous_pieces(src_pages: Pages, dst_pages: Pages) -> tuple[Run, ...]:
    """Maximal index ranges in which both page lists rise by one.

    Each range is one write: `length` pages from src_pages[start] to dst_pages[start].
    """
    if src_pages.shape != dst_pages.shape or src_pages.ndim != 1:
        raise ValueError(f"page lists differ in shape: {src_pages.shape} and {dst_pages.shape}")
    count = len(src_pages)
    if count == 0:
        return ()
    joined = (src_pages[1:] - src_pages[:-1] == 1) & (dst_pages[1:] - dst_pages[:-1] == 1)
    if joined.all():
        return (Run(0, count),)
    cuts = [0, *(np.flatnonzero(~joined) + 1).tolist(), count]
    return tuple(Run(start, stop) for start, stop in pairwise(cuts))
