"""Evidence taken from a sample, against the attention that transformers computes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from smartgen.ops import Backend
from smartgen.profiler.evidence import LayerEvidence
from smartgen.profiler.measure import Measure
from smartgen.profiler.prompts import Prompt
from smartgen.profiler.sample import Sample, Sampler
from smartgen.select import MissingEvidence
from transformers import LlamaForCausalLM

LAYERS, HEADS = 3, 4
CLOSE = {"rtol": 0.0, "atol": 2e-5}


@pytest.fixture(scope="module")
def sample(sampler: Sampler, make_prompt: Callable[..., Prompt]) -> Sample:
    """More queries than are summed at once; a partial block at the end."""
    return sampler.sample(make_prompt(301), keep_all=True)


@pytest.fixture(scope="module")
def attention(eager: LlamaForCausalLM, sample: Sample) -> list[np.ndarray]:
    """Per layer [heads, tokens, tokens] of prompt and answer."""
    tokens = torch.tensor([[*sample.prompt.tokens, *sample.inputs]])
    with torch.inference_mode():
        found = eager(tokens, output_attentions=True).attentions
    return [layer[0].numpy() for layer in found]


def evidence_of(sample: Sample, ops: Backend, layer: int = 1) -> LayerEvidence:
    return LayerEvidence(sample, ops, layer, LAYERS)


def by_block(mass: np.ndarray, block_size: int) -> np.ndarray:
    """[.., tokens] -> [.., blocks]"""
    return np.add.reduceat(mass, np.arange(0, mass.shape[-1], block_size), axis=-1)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_window_mass_is_the_last_queries_attention(
    sample: Sample, ops: Backend, attention: list[np.ndarray], layer: int
) -> None:
    evidence = evidence_of(sample, ops, layer)
    mass = evidence.window_mass(16)
    own = attention[layer][:, sample.tokens - 16 : sample.tokens, : sample.tokens]
    expected = by_block(own, sample.block_size)
    assert mass.dtype == np.float32
    np.testing.assert_allclose(mass, expected.swapaxes(0, 1), **CLOSE)
    np.testing.assert_allclose(mass.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(evidence.window_mass(5), mass[-5:])


def test_a_window_longer_than_the_prompt_has_fewer_rows(
    sampler: Sampler, ops: Backend, make_prompt: Callable[..., Prompt]
) -> None:
    for tokens, blocks in ((1, 1), (20, 3)):
        mass = evidence_of(sampler.sample(make_prompt(tokens)), ops).window_mass(48)
        assert mass.shape == (tokens, HEADS, blocks)
        np.testing.assert_allclose(mass.sum(axis=-1), 1.0, atol=1e-5)
    assert np.all(mass[0, :, 1:] == 0)  # the oldest query sees the first token only


def test_accumulated_mass_is_the_sum_over_all_queries(
    sample: Sample, ops: Backend, attention: list[np.ndarray]
) -> None:
    expected = by_block(
        attention[1][:, : sample.tokens, : sample.tokens].sum(axis=1), sample.block_size
    )
    mass = evidence_of(sample, ops).accumulated_mass()
    np.testing.assert_allclose(mass, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(mass.sum(axis=1), sample.tokens, rtol=1e-5)


def test_the_oracle_sees_what_the_answer_will_look_at(
    sample: Sample, ops: Backend, attention: list[np.ndarray]
) -> None:
    own = attention[2][:, sample.tokens :, : sample.tokens].mean(axis=1)
    mass = evidence_of(sample, ops, 2).decoded_mass()
    np.testing.assert_allclose(mass, by_block(own, sample.block_size), **CLOSE)


def test_a_digest_of_single_tokens_is_exact(sample: Sample, ops: Backend) -> None:
    evidence = evidence_of(sample, ops)
    exact = evidence.window_mass(1)[0]
    np.testing.assert_allclose(evidence.digest_mass("means-1"), exact, **CLOSE)
    assert np.all(evidence.digest_mass("quest") >= exact * (1 - 1e-4))
    assert not np.allclose(evidence.digest_mass("mean"), exact, atol=1e-3)


def test_what_was_not_kept_is_missing(
    sampler: Sampler, ops: Backend, make_prompt: Callable[..., Prompt]
) -> None:
    evidence = evidence_of(sampler.sample(make_prompt(100)), ops)
    assert evidence.window_mass(64).shape[0] == 64
    with pytest.raises(MissingEvidence, match="accumulated attention"):
        evidence.accumulated_mass()
    with pytest.raises(MissingEvidence, match=r"last 65 queries \(64 are kept\) was not gathered"):
        evidence.window_mass(65)


@pytest.mark.parametrize(
    "gather",
    [
        lambda evidence: evidence.window_mass(8),
        lambda evidence: evidence.accumulated_mass(),
        lambda evidence: evidence.digest_mass("mean"),
        lambda evidence: evidence.decoded_mass(),
    ],
)
def test_a_selector_cannot_spoil_what_the_next_one_sees(
    sample: Sample, ops: Backend, gather: Callable[[LayerEvidence], np.ndarray]
) -> None:
    with pytest.raises(ValueError, match="read-only"):
        gather(evidence_of(sample, ops))[:] = 0


def test_position_shares_sum_to_one(
    sampler: Sampler, ops: Backend, sample: Sample, make_prompt: Callable[..., Prompt]
) -> None:
    for one in (sample, sampler.sample(make_prompt(3))):
        shares = np.array(Measure(sampler, ops, one).position(32, 10))
        assert shares.shape == (LAYERS, 10)
        assert (shares >= 0).all()
        np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)


def test_position_finds_the_right_place(
    sampler: Sampler, ops: Backend, make_prompt: Callable[..., Prompt]
) -> None:
    """Bins that end where blocks end hold exactly those blocks."""
    whole = sampler.sample(make_prompt(160))
    shares = np.array(Measure(sampler, ops, whole).position(32, 5))
    mass = evidence_of(whole, ops, 0).window_mass(32).mean(axis=(0, 1))
    np.testing.assert_allclose(shares[0], mass.reshape(5, 4).sum(axis=1), atol=1e-6)
