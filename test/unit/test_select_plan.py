from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from smartgen.core import Run
from smartgen.select import SelectError, always, order, plan

floats = st.floats(width=32) | st.sampled_from([0.0, 0.5, 1.0])  # NaN, infinities and ties too
shapes = st.tuples(st.integers(1, 4), st.integers(1, 12))
scores_of_any_kind = shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=floats))


@st.composite
def requests(draw):
    scores = draw(scores_of_any_kind)
    layers, blocks = scores.shape
    counts = draw(st.lists(st.integers(0, blocks), min_size=layers, max_size=layers))
    forced = draw(st.lists(st.integers(0, blocks - 1), unique=True, max_size=blocks))
    return scores, counts, sorted(forced)


def blocks_of(runs):
    return [block for run in runs for block in range(*run)]


@settings(deadline=None)
@given(requests())
def test_a_plan_holds_the_forced_and_then_the_best(request_):
    scores, counts, forced = request_
    selected = plan(scores, counts, forced)
    known = np.where(np.isfinite(scores), scores, -np.inf)
    for layer, runs in enumerate(selected.layers):
        sent = blocks_of(runs)
        assert len(sent) == selected.blocks_per_layer[layer] == max(counts[layer], len(forced))
        assert sent == sorted(set(sent))
        assert set(forced) <= set(sent)
        assert all(a.stop < b.start for a, b in pairwise(runs))
        chosen = set(sent) - set(forced)
        for out in set(range(scores.shape[1])) - set(sent):
            assert all((known[layer, c], -c) > (known[layer, out], -out) for c in chosen)
    assert selected.fraction == pytest.approx(sum(selected.blocks_per_layer) / scores.size)


@settings(deadline=None)
@given(requests(), st.data())
def test_the_rest_is_everything_else_best_first(request_, data):
    scores, counts, forced = request_
    selected = plan(scores, counts, forced)
    losses = data.draw(st.lists(st.floats(0, 10), min_size=len(scores), max_size=len(scores)))
    rest = order(scores, selected, losses)
    assert rest.dtype == np.int32
    pairs = [tuple(pair) for pair in rest.tolist()]
    sent = {(la, b) for la, runs in enumerate(selected.layers) for b in blocks_of(runs)}
    layers, blocks = scores.shape
    assert sorted(pairs) == sorted({(la, b) for la in range(layers) for b in range(blocks)} - sent)
    known = np.where(np.isfinite(scores), scores, -np.inf)
    for layer in range(layers):
        ranked = [known[layer, b] for la, b in pairs if la == layer]
        assert ranked == sorted(ranked, reverse=True)


def test_ties_go_to_the_lower_block():
    selected = plan(np.ones((2, 6), np.float32), [3, 2], [4])
    assert selected.layers == ((Run(0, 2), Run(4, 5)), (Run(0, 1), Run(4, 5)))
    assert order(np.ones((2, 6), np.float32), selected, [1, 1]).tolist() == [
        [0, 2], [0, 3], [0, 5], [1, 1], [1, 2], [1, 3], [1, 5],
    ]  # fmt: skip


def test_scores_that_are_all_nan_select_from_the_front():
    selected = plan(np.full((1, 5), np.nan, np.float32), [3], [4])
    assert selected.layers == ((Run(0, 2), Run(4, 5)),)


def test_what_is_not_finite_never_wins():
    scores = np.array([[np.nan, np.inf, -3.0, -np.inf, -2.0]], np.float32)
    assert plan(scores, [2], []).layers == ((Run(2, 3), Run(4, 5)),)


def test_the_layer_that_loses_more_comes_first():
    scores = np.array([[9.0, 0.6, 0.3, 0.0], [9.0, 0.2, 0.2, 0.1]], np.float32)
    selected = plan(scores, [1, 1], [0])
    # Layer 0 shares its 0.9 as 0.6 : 0.3, layer 1 its 3.0 as 0.1 : 0.1.
    assert order(scores, selected, [0.9, 3.0]).tolist() == [
        [1, 1], [1, 2], [0, 1], [0, 2], [1, 3], [0, 3],
    ]  # fmt: skip


def test_a_full_plan_leaves_no_rest():
    scores = np.zeros((2, 3), np.float32)
    selected = plan(scores, [3, 3], [])
    assert selected.fraction == 1
    assert order(scores, selected, [0, 0]).shape == (0, 2)


def test_runs_in_pages_end_with_the_prompt():
    selected = plan(np.array([[0, 2, 0, 1]], np.float32), [2], [])
    assert selected.layers == ((Run(1, 2), Run(3, 4)),)
    assert selected.page_runs(pages_per_block=2, pages=7) == ((Run(2, 4), Run(6, 7)),)


@pytest.mark.parametrize(
    ("scores", "counts", "forced", "cause"),
    [
        (np.zeros((2, 0)), [0, 0], [], r"scores have shape \(2, 0\)"),
        (np.zeros(3), [0], [], r"scores have shape \(3,\)"),
        (np.zeros((2, 3)), [1], [], "1 counts for 2 layers"),
        (np.zeros((2, 3)), [1, 4], [], r"layer 1 asks for 4 blocks, must be 0\.\.3"),
        (np.zeros((2, 3)), [-1, 0], [], "layer 0 asks for -1 blocks"),
        (np.zeros((2, 3)), [1, 1], [3], r"forced blocks \(3,\) are outside 0\.\.2"),
    ],
)
def test_what_does_not_match_is_refused(scores, counts, forced, cause):
    with pytest.raises(SelectError, match=cause):
        plan(scores.astype(np.float32), counts, forced)


def test_an_order_needs_a_loss_for_each_layer():
    scores = np.zeros((2, 3), np.float32)
    with pytest.raises(SelectError, match="1 KL values and a plan of 2 layers"):
        order(scores, plan(scores, [1, 1], []), [0.1])


@pytest.mark.parametrize(
    ("tokens", "forced"),
    [
        (1, (0,)),
        (31, (0,)),
        (32, (0,)),
        (33, (0, 1)),
        (64, (0, 1)),
        (80, (0, 2)),
        (79, (0, 1, 2)),
        (96, (0, 2)),
        (8192, (0, 255)),
        (8193, (0, 255, 256)),
    ],
)
def test_the_first_block_and_the_last_tokens_always_go(tokens, forced):
    assert always(tokens, 32) == forced


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 5), st.integers(0, 50))
def test_forced_blocks_are_those_of_the_first_and_last_tokens(tokens, size, sinks, recent):
    blocks = -(-tokens // size)
    expected = set(range(min(sinks, blocks)))
    expected |= {token // size for token in range(max(0, tokens - recent), tokens)}
    if tokens % size:
        expected.add(blocks - 1)
    assert always(tokens, size, sinks, recent) == tuple(sorted(expected))


@pytest.mark.parametrize("arguments", [(0, 32), (-1, 32), (1, 0), (1, 32, -1), (1, 32, 1, -1)])
def test_nothing_to_choose_from_is_refused(arguments):
    with pytest.raises(SelectError, match="must be"):
        always(*arguments)
