from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from smartgen.core import Run, contiguous_pieces, mask_runs, merge_runs, split_run

small_runs = st.lists(st.builds(Run, st.integers(0, 30), st.integers(0, 30)), max_size=12)


def positions(runs):
    return {p for run in runs for p in range(run.start, run.stop)}


@given(small_runs)
def test_merged_runs_cover_the_same_positions_and_never_touch(runs):
    merged = merge_runs(runs)
    assert positions(merged) == positions(runs)
    assert all(a.stop < b.start for a, b in pairwise(merged))
    assert all(run.length > 0 for run in merged)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_split_parts_join_to_the_run(start, length, limit):
    parts = list(split_run(Run(start, start + length), limit))
    assert merge_runs(parts) == merge_runs([Run(start, start + length)])
    assert all(0 < part.length <= limit for part in parts)


def test_a_run_is_not_split_into_nothing():
    with pytest.raises(ValueError, match="0 positions"):
        list(split_run(Run(0, 3), 0))


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 5))
def test_mask_runs_are_the_true_values(mask, offset):
    runs = mask_runs(np.array(mask, dtype=bool), offset=offset)
    assert positions(runs) == {i + offset for i, value in enumerate(mask) if value}
    assert merge_runs(runs) == runs


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=25))
def test_pieces_are_contiguous_on_both_sides_and_maximal(pairs):
    src = np.array([a for a, _ in pairs], dtype=np.int32)
    dst = np.array([b for _, b in pairs], dtype=np.int32)
    pieces = contiguous_pieces(src, dst)
    assert [p for piece in pieces for p in range(*piece)] == list(range(len(pairs)))
    for piece in pieces:
        for pages in (src, dst):
            part = pages[piece.start : piece.stop]
            assert (part == part[0] + np.arange(len(part))).all()
    for left, right in pairwise(pieces):
        i = right.start
        assert not (src[i] == src[i - 1] + 1 and dst[i] == dst[i - 1] + 1), left


def test_page_lists_of_different_length_are_refused():
    with pytest.raises(ValueError, match="differ in shape"):
        contiguous_pieces(np.zeros(2, np.int32), np.zeros(3, np.int32))
