"""The profiler's passes against transformers' own attention, and against each other."""

from collections.abc import Callable

import pytest
import torch
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.evidence import Digest
from smartgen.profiler.passes import Rows, Visible
from smartgen.profiler.policies import Fixed, OnDemand, OneLayer
from smartgen.profiler.prompts import Prompt
from smartgen.profiler.sample import Sample, Sampler
from smartgen.profiler.scoring import compare
from torch import Tensor
from transformers import LlamaForCausalLM

LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 3, 4, 2, 16
# Less than a page, less than a block, a page that is not full, whole blocks.
LENGTHS = (1, 3, 6, 50, 203, 64)
CLOSE = {"rtol": 0.0, "atol": 2e-4}

MakePrompt = Callable[..., Prompt]


def random_mask(sample: Sample, seed: int = 0) -> Tensor:
    """bool [layers, blocks], about half of them."""
    return torch.rand(LAYERS, sample.blocks, generator=torch.manual_seed(seed)) < 0.5


def seen_tokens(mask: Tensor, sample: Sample) -> Tensor:
    """bool [layers, tokens]: what a mask of blocks shows; a page that is not full stays with decode."""
    seen = mask.repeat_interleave(sample.block_size, dim=1)[:, : sample.tokens].clone()
    seen[:, sample.tokens // sample.kv.page_size * sample.kv.page_size :] = True
    return seen


def masked_by_transformers(eager: LlamaForCausalLM, sample: Sample, seen: Tensor) -> Tensor:
    """Log-probabilities after each input, by one masked softmax per layer over the whole text."""
    tokens = torch.tensor([[*sample.prompt.tokens, *sample.inputs]])
    causal = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
    hooks = []
    for layer, module in enumerate(eager.model.layers):
        allowed = causal.clone()
        allowed[sample.tokens :, : sample.tokens] &= seen[layer]
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)[None, None]
        hooks.append(
            module.register_forward_pre_hook(
                lambda _, args, rest, mask=mask: (args, rest | {"attention_mask": mask}),
                with_kwargs=True,
            )
        )
    try:
        with torch.inference_mode():
            logits = eager(tokens).logits[0, sample.tokens :]
    finally:
        for hook in hooks:
            hook.remove()
    return torch.log_softmax(logits, dim=-1)


def one_by_one(sampler: Sampler, sample: Sample, visible: Visible | None) -> Tensor:
    """Log-probabilities after each input, decoded as a server does."""
    rows = []
    for position, token in enumerate(sample.inputs, sample.tokens):
        step = Rows(
            ops=sampler.ops,
            kv=sample.kv,
            tokens=sample.tokens,
            start=position,
            block_size=sample.block_size,
            visible=visible,
        )
        hidden = sampler.model.run(sampler.model.embed([token]), position, step)
        rows.append(torch.log_softmax(sampler.model.logits(hidden), dim=-1))
    return torch.cat(rows)


def forget_answer(sample: Sample) -> None:
    """Whoever reads an answer token's KV before it is written now finds NaN."""
    for cache in (*sample.kv.k, *sample.kv.v):
        cache[sample.tokens :] = torch.nan


@pytest.mark.parametrize("tokens", LENGTHS)
def test_full_kv_is_what_transformers_computes(
    sampler: Sampler, eager: LlamaForCausalLM, make_prompt: MakePrompt, tokens: int
) -> None:
    sample = sampler.sample(make_prompt(tokens))
    everything = torch.ones(LAYERS, sample.tokens, dtype=torch.bool)
    expected = masked_by_transformers(eager, sample, everything)
    torch.testing.assert_close(sample.log_probs, expected, **CLOSE)
    assert sample.log_probs.argmax(-1).tolist() == sample.answer[1:]
    assert sample.inputs == sample.answer[:-1]
    assert len(sample.inputs) == sampler.answer_tokens


def test_the_first_token_is_prefills(
    sampler: Sampler, eager: LlamaForCausalLM, make_prompt: MakePrompt
) -> None:
    prompt = make_prompt(33)
    with torch.inference_mode():
        expected = int(eager(torch.tensor([prompt.tokens])).logits[0, -1].argmax())
    assert sampler.sample(prompt).answer[0] == expected


def test_rows_that_see_everything_are_full_kv(sampler: Sampler, make_prompt: MakePrompt) -> None:
    sample = sampler.sample(make_prompt(50))
    everything = torch.ones(LAYERS, sample.blocks, dtype=torch.bool)
    assert torch.equal(sampler.rows(sample, None), sample.log_probs)
    assert torch.equal(sampler.rows(sample, Fixed(everything)), sample.log_probs)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_a_mask_in_one_pass_step_by_step_and_in_transformers(
    sampler: Sampler, eager: LlamaForCausalLM, make_prompt: MakePrompt, tokens: int
) -> None:
    sample = sampler.sample(make_prompt(tokens, seed=1))
    mask = random_mask(sample)
    expected = masked_by_transformers(eager, sample, seen_tokens(mask, sample))
    forget_answer(sample)
    torch.testing.assert_close(sampler.rows(sample, Fixed(mask)), expected, **CLOSE)
    forget_answer(sample)
    torch.testing.assert_close(one_by_one(sampler, sample, Fixed(mask)), expected, **CLOSE)
    if tokens > 8:
        assert max(compare(sample.log_probs, expected).kl) > 0.05  # the mask does bite


def test_blocks_out_of_sight_are_never_read(sampler: Sampler, make_prompt: MakePrompt) -> None:
    sample = sampler.sample(make_prompt(50, seed=1))
    mask = random_mask(sample)
    before = sampler.rows(sample, Fixed(mask))
    for layer, seen in enumerate(seen_tokens(mask, sample)):
        sample.kv.k[layer][: sample.tokens][~seen] = torch.nan
        sample.kv.v[layer][: sample.tokens][~seen] = torch.inf
    assert torch.equal(sampler.rows(sample, Fixed(mask)), before)


def test_a_restricted_pass_leaves_no_trace(sampler: Sampler, make_prompt: MakePrompt) -> None:
    sample = sampler.sample(make_prompt(50))
    sampler.rows(sample, Fixed(random_mask(sample)))
    sampler.free_run(sample, Fixed(random_mask(sample, 1)))
    assert torch.equal(sampler.rows(sample, None, first_layer=2), sample.log_probs)
    assert torch.equal(sampler.rows(sample, None), sample.log_probs)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_one_layer_may_start_at_that_layer(
    sampler: Sampler, eager: LlamaForCausalLM, make_prompt: MakePrompt, layer: int
) -> None:
    sample = sampler.sample(make_prompt(50, seed=2))
    mask = random_mask(sample)[layer]
    started_there = sampler.rows(sample, OneLayer(layer, mask), first_layer=layer)
    torch.testing.assert_close(sampler.rows(sample, OneLayer(layer, mask)), started_there, **CLOSE)
    whole = torch.ones(LAYERS, sample.blocks, dtype=torch.bool)
    whole[layer] = mask
    expected = masked_by_transformers(eager, sample, seen_tokens(whole, sample))
    torch.testing.assert_close(started_there, expected, **CLOSE)
    assert max(compare(sample.log_probs, started_there).kl) > 0.01


def on_demand(
    sampler: Sampler, sample: Sample, *, digest: str = "means-4", top: int = 2
) -> OnDemand:
    return OnDemand(
        sample,
        sampler.ops,
        sparse(sample),
        digest=digest,
        layers=frozenset({0, 2}),
        top=top,
    )


def sparse(sample: Sample) -> Tensor:
    """bool [layers, blocks]: the ends only."""
    mask = torch.zeros(LAYERS, sample.blocks, dtype=torch.bool)
    mask[:, [0, -1]] = True
    return mask


@pytest.mark.parametrize("digest", ["mean", "means-4", "quest"])
def test_on_demand_in_one_pass_is_on_demand_step_by_step(
    sampler: Sampler, make_prompt: MakePrompt, digest: str
) -> None:
    sample = sampler.sample(make_prompt(100, seed=3))
    at_once, stepped = (on_demand(sampler, sample, digest=digest) for _ in range(2))
    forget_answer(sample)
    together = sampler.rows(sample, at_once)
    forget_answer(sample)
    torch.testing.assert_close(together, one_by_one(sampler, sample, stepped), **CLOSE)
    assert at_once.fetched == stepped.fetched
    assert at_once.fetched.keys() == {0, 2}
    assert all(len(counts) == len(sample.inputs) for counts in at_once.fetched.values())
    assert sum(sum(counts) for counts in at_once.fetched.values()) > 0


class Watched:
    """Remembers the queries of each layer and what they were shown."""

    def __init__(self, policy: OnDemand) -> None:
        self._policy = policy
        self.q: dict[int, Tensor] = {}
        self.shown: dict[int, Tensor] = {}

    def blocks(self, layer: int, q: Tensor, scale: float) -> Tensor:
        self.q[layer] = q
        self.shown[layer] = self._policy.blocks(layer, q, scale)
        return self.shown[layer]


def test_what_was_fetched_stays_and_is_counted_once(
    sampler: Sampler, make_prompt: MakePrompt
) -> None:
    sample = sampler.sample(make_prompt(100, seed=3))
    policy = on_demand(sampler, sample)
    watched = Watched(policy)
    sampler.rows(sample, watched)
    assert torch.equal(watched.shown[1], sparse(sample)[1].expand(len(sample.inputs), -1))
    for layer in (0, 2):
        resident = {0, sample.blocks - 1}
        digest = Digest(sample, sampler.ops, layer, "means-4")
        for row, scores in enumerate(digest.scores(watched.q[layer])):
            weights = torch.exp2(scores)
            best = (weights / weights.sum(1, keepdim=True)).amax(0)
            wanted = set(best.argsort(descending=True)[:2].tolist())
            assert policy.fetched[layer][row] == len(wanted - resident)
            resident |= wanted
            assert set(watched.shown[layer][row].nonzero()[:, 0].tolist()) == resident
        # Asked again, everything wanted is there.
        policy.blocks(layer, watched.q[layer], sample.scale)
        assert sum(policy.fetched[layer][len(sample.inputs) :]) == 0


@pytest.mark.parametrize(("digest", "vectors"), [("mean", 1), ("means-4", 2), ("quest", 2)])
def test_digest_bytes_are_those_of_absent_blocks(
    sampler: Sampler, make_prompt: MakePrompt, digest: str, vectors: int
) -> None:
    sample = sampler.sample(make_prompt(100))
    absent = sample.blocks - 2
    expected = 2 * absent * vectors * KV_HEADS * HEAD_SIZE * 4  # two layers, float32
    assert on_demand(sampler, sample, digest=digest).digest_bytes == pytest.approx(expected)


def test_a_free_run_that_sees_everything_gives_the_reference_answer(
    sampler: Sampler, make_prompt: MakePrompt
) -> None:
    sample = sampler.sample(make_prompt(60, seed=4))
    everything = torch.ones(LAYERS, sample.blocks, dtype=torch.bool)
    fetch_all = OnDemand(
        sample,
        sampler.ops,
        sparse(sample),
        digest="mean",
        layers=frozenset(range(LAYERS)),
        top=sample.blocks,
    )
    for visible in (None, Fixed(everything), fetch_all):
        assert sampler.free_run(sample, visible) == sample.answer
    assert sampler.free_run(sample, Fixed(sparse(sample))) != sample.answer


def test_a_free_run_takes_its_own_course(
    sampler: Sampler, eager: LlamaForCausalLM, make_prompt: MakePrompt
) -> None:
    sample = sampler.sample(make_prompt(60, seed=4))
    mask = sparse(sample)
    answer = sampler.free_run(sample, Fixed(mask))
    # Given that course as known tokens, one masked pass predicts each next token of it.
    told = sampler.sample(sample.prompt, inputs=answer[:-1])
    expected = masked_by_transformers(eager, told, seen_tokens(mask, told))
    assert expected.argmax(-1).tolist() == answer[1:]


@pytest.mark.parametrize("length", [1, 3])
def test_an_end_token_ends_the_answer(
    sampler: Sampler, make_prompt: MakePrompt, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    prompt = make_prompt(40)
    whole = sampler.sample(prompt).answer
    monkeypatch.setattr(CausalLM, "end_tokens", frozenset({whole[length - 1]}))
    sample = sampler.sample(prompt)
    assert sample.answer == whole[:length]
    assert sample.inputs == (whole[: length - 1] or whole[:1])
    assert torch.equal(sampler.rows(sample, None), sample.log_probs)


def test_end_tokens_are_the_generation_configs(model: CausalLM) -> None:
    assert model.end_tokens == {0}


def test_given_inputs_may_be_longer_than_an_answer(
    sampler: Sampler, eager: LlamaForCausalLM, make_prompt: MakePrompt
) -> None:
    inputs = make_prompt(4 * sampler.answer_tokens, seed=9).tokens
    sample = sampler.sample(make_prompt(30), inputs=inputs)
    everything = torch.ones(LAYERS, sample.tokens, dtype=torch.bool)
    assert sample.inputs == inputs
    torch.testing.assert_close(
        sample.log_probs, masked_by_transformers(eager, sample, everything), **CLOSE
    )
