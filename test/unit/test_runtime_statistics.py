"""Statistics of a prompt: the same scores however it is cut into chunks, and never a stranger's query."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from smartgen.ops import reference
from smartgen.runtime import LayerRows, PromptStatistics, StatisticsSpec
from smartgen.select import MissingEvidence, selector

LAYERS, HEADS, KV_HEADS, SIZE, PAGE, BLOCK = 3, 4, 2, 16, 4, 8
SCALE = SIZE**-0.5
FULL_PRECISION = 1e-5


def spec(name="window-16-max", **changes):
    values = {
        "layers": LAYERS,
        "page_size": PAGE,
        "block_size": BLOCK,
        "selector": selector(name),
        "ops": reference,
        **changes,
    }
    return StatisticsSpec(**values)


class Prompt:
    """Queries and keys of all layers, with the log-sum-exp that attention would have given."""

    def __init__(self, tokens, seed=0):
        made = torch.Generator().manual_seed(seed)
        pages = -(-tokens // PAGE)
        order = torch.randperm(pages, generator=made)
        slots = (order[:, None] * PAGE + torch.arange(PAGE)).flatten()
        self.tokens, self.slots = tokens, slots.to(torch.int32)
        self.q = 3 * torch.randn(LAYERS, tokens, HEADS, SIZE, generator=made)
        self.k_cache = torch.randn(LAYERS, pages * PAGE, KV_HEADS, SIZE, generator=made)
        self.lse2 = torch.stack([self._attend(layer) for layer in range(LAYERS)])

    def _attend(self, layer):
        _, lse2 = reference.extend_attention(
            self.q[layer],
            self.k_cache[layer],
            self.k_cache[layer],
            self.slots[None],
            torch.tensor([0]),
            torch.tensor([0]),
            torch.tensor([self.tokens]),
            page_size=PAGE,
            scale=SCALE,
        )
        return lse2

    def rows(self, layer, start, stop):
        return LayerRows(
            layer=layer,
            q=self.q[layer, start:stop],
            lse2=self.lse2[layer, start:stop],
            k_cache=self.k_cache[layer],
            slots=self.slots,
            scale=SCALE,
        )

    def feed(self, statistics, *bounds):
        """The chunks between these positions, one after the other."""
        for start, stop in pairwise(bounds):
            statistics.begin(start, stop)
            for layer in range(LAYERS):
                statistics.add(self.rows(layer, start, stop))
        return statistics.scores

    def expected(self, queries=16):
        """[layers, blocks]: largest share over the last queries and all heads, by a plain loop."""
        scores = np.zeros((LAYERS, -(-self.tokens // BLOCK)), dtype=np.float32)
        for layer in range(LAYERS):
            for position in range(max(0, self.tokens - queries), self.tokens):
                for head in range(HEADS):
                    keys = self.k_cache[layer, self.slots[: position + 1].long()]
                    logits = keys[:, head * KV_HEADS // HEADS] @ self.q[layer, position, head]
                    shares = torch.softmax(logits * SCALE, dim=0)
                    for block in range(scores.shape[1]):
                        share = float(shares[block * BLOCK : (block + 1) * BLOCK].sum())
                        scores[layer, block] = max(scores[layer, block], share)
        return scores


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 15, 16, 17, 31, 33, 61])
def test_one_chunk_gives_the_largest_share_of_the_last_queries(tokens):
    prompt = Prompt(tokens)
    scores = prompt.feed(PromptStatistics(spec(), tokens), 0, tokens)
    np.testing.assert_allclose(scores, prompt.expected(), atol=FULL_PRECISION)


@pytest.mark.parametrize(
    "cuts",
    [
        (60,),  # a last chunk of one token
        (57,),  # of four
        (32,),  # of more than the window
        (20, 40, 60),
        (50, 55, 59),  # all but the first within the window
        (29, 45, 60),
        tuple(range(30, 61)),  # token by token
    ],
)
def test_chunks_do_not_matter(cuts):
    prompt = Prompt(61)
    in_parts = prompt.feed(PromptStatistics(spec(), 61), 0, *cuts, 61)
    np.testing.assert_array_equal(in_parts, prompt.feed(PromptStatistics(spec(), 61), 0, 61))


@pytest.mark.parametrize("window", [1, 16, 64])
def test_the_selector_sees_as_many_queries_as_it_asks_for(window):
    prompt = Prompt(40)
    taken = PromptStatistics(spec(f"window-{window}-max", window=64), 40)
    scores = prompt.feed(taken, 0, 10, 30, 40)
    np.testing.assert_allclose(scores, prompt.expected(window), atol=FULL_PRECISION)


def test_nothing_is_known_before_the_last_layer_of_the_last_chunk():
    prompt, taken = Prompt(40), PromptStatistics(spec(), 40)
    assert prompt.feed(taken, 0, 30) is None
    taken.begin(30, 40)
    for layer in range(LAYERS):
        assert taken.scores is None
        taken.add(prompt.rows(layer, 30, 40))
    assert taken.scores is not None
    assert taken.seconds > 0


def test_early_chunks_keep_nothing_and_the_buffer_ends_with_the_prompt():
    prompt, taken = Prompt(61), PromptStatistics(spec(), 61)
    prompt.feed(taken, 0, 20)
    assert taken._kept is None
    prompt.feed(taken, 20, 50)
    assert taken._kept.q.shape == (LAYERS, 32, HEADS, SIZE)
    prompt.feed(taken, 50, 61)
    assert taken._kept is None


def test_what_a_batch_holds_behind_the_prompt_does_not_vote():
    prompt, taken = Prompt(40), PromptStatistics(spec(), 40)
    prompt.feed(taken, 0, 20)
    taken.begin(20, 45)
    for layer in range(LAYERS):
        rows = prompt.rows(layer, 20, 40)
        padding = torch.full((5, HEADS, SIZE), float("nan"))
        q, lse2 = torch.cat((rows.q, padding)), torch.cat((rows.lse2, padding[..., 0]))
        taken.add(
            LayerRows(
                layer=layer,
                q=q,
                lse2=lse2,
                k_cache=rows.k_cache,
                slots=rows.slots,
                scale=SCALE,
            )
        )
    scores = taken.scores
    np.testing.assert_allclose(scores, prompt.expected(), atol=FULL_PRECISION)
    taken.begin(40, 41)  # a decoded token
    taken.add(prompt.rows(0, 39, 40))
    assert taken.scores is scores


def test_a_prompt_taken_back_starts_again_from_what_is_cached_by_then():
    prompt, taken = Prompt(61), PromptStatistics(spec(), 61)
    stranger = Prompt(61, seed=1)
    stranger.feed(taken, 0, 50)
    scores = prompt.feed(taken, 28, 52, 61)
    np.testing.assert_allclose(scores, prompt.expected(), atol=FULL_PRECISION)
    assert prompt.feed(taken, 0, 50) is None


def test_only_computed_queries_vote():
    """Nobody asked the cache to leave them, so most are missing."""
    prompt, taken = Prompt(61), PromptStatistics(spec(), 61)
    Prompt(61, seed=1).feed(taken, 0, 50)
    scores = prompt.feed(taken, 56, 60, 61)
    np.testing.assert_allclose(scores, prompt.expected(queries=5), atol=FULL_PRECISION)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_key_costs_its_own_block_its_rank_and_nothing_else(value):
    prompt, taken = Prompt(61), PromptStatistics(spec(), 61)
    expected = prompt.expected()
    prompt.k_cache[:, prompt.slots[19].long()] = value
    scores = prompt.feed(taken, 0, 40, 61)
    assert (scores[:, 19 // BLOCK] == -np.inf).all()
    rest = [block for block in range(scores.shape[1]) if block != 19 // BLOCK]
    np.testing.assert_allclose(scores[:, rest], expected[:, rest], atol=FULL_PRECISION)


def test_bad_queries_rank_nothing_and_raise_nothing():
    prompt, taken = Prompt(33), PromptStatistics(spec(), 33)
    prompt.q[:] = float("nan")
    prompt.lse2[:] = float("nan")
    assert (prompt.feed(taken, 0, 33) == -np.inf).all()


@pytest.mark.parametrize("name", ["accumulated", "means-8", "oracle", "window-33-mean"])
def test_a_selector_that_wants_more_is_told_so(name):
    prompt = Prompt(40)
    with pytest.raises(MissingEvidence):
        prompt.feed(PromptStatistics(spec(name), 40), 0, 40)


@pytest.mark.parametrize("changes", [{"window": 0}, {"window": 65}, {"block_size": 6}])
def test_a_spec_that_cannot_be_met_is_refused(changes):
    with pytest.raises(ValueError, match=r"must be 1\.\.64|whole pages"):
        spec(**changes)
