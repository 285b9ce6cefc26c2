"""Prompts, models and caches at the edge of what can be measured, and beyond it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from smartgen.ops import Backend
from smartgen.profile import Profile
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.evidence import LayerEvidence
from smartgen.profiler.judge import Judge
from smartgen.profiler.methods import Choice, Demand, Method
from smartgen.profiler.policies import OnDemand
from smartgen.profiler.prompts import Prompt
from smartgen.profiler.sample import Sampler
from smartgen.select import score_layers, selector
from smartgen_lab.accuracy.plan import standard_methods
from transformers import GPT2Config, GPT2LMHeadModel

MakePrompt = Callable[..., Prompt]


def test_an_empty_prompt_is_refused_by_name(sampler: Sampler) -> None:
    empty = Prompt(name="nothing", kind="random", tokens=[])
    for refuse in (sampler.sample, lambda prompt: sampler.check([prompt])):
        with pytest.raises(ProfilerError, match="nothing is empty; give it at least one token"):
            refuse(empty)


@pytest.mark.parametrize("tokens", [1, 3, 7, 9])
def test_the_shortest_prompts_go_through_every_method(
    sampler: Sampler, ops: Backend, profile: Profile, make_prompt: MakePrompt, tokens: int
) -> None:
    judge = Judge(sampler, ops, profile, standard_methods(profile), only_right=False)
    rows = judge.rows(make_prompt(tokens))
    assert {row["tokens"] for row in rows} == {tokens}
    for row in rows[1:]:
        # The ends of the prompt are forced, which here is all of it.
        assert row["base"] == 1.0
        assert row["kl"] == 0.0
        assert row["agreement"] == 1.0
        assert row.get("fetched", 0.0) == 0.0


def test_a_prompt_at_the_context_limit_and_one_token_more(
    sampler: Sampler, model: CausalLM, make_prompt: MakePrompt
) -> None:
    most = model.shape.context - sampler.answer_tokens
    sample = sampler.sample(make_prompt(most))
    assert len(sample.inputs) == sampler.answer_tokens
    assert sample.log_probs.isfinite().all()
    longer = make_prompt(most + 1)
    for refuse in (sampler.sample, lambda prompt: sampler.check([prompt])):
        with pytest.raises(ProfilerError, match=f"prompt {longer.name} has {most + 1} tokens.*512"):
            refuse(longer)


def test_what_follows_a_prompt_counts_against_the_context(
    sampler: Sampler, model: CausalLM, make_prompt: MakePrompt
) -> None:
    prompt = make_prompt(model.shape.context - 20)
    sampler.check([replace(prompt, continuation=[5] * 21)])
    with pytest.raises(ProfilerError, match="21 for the answer"):
        sampler.check([replace(prompt, continuation=[5] * 22)])
    with pytest.raises(ProfilerError, match="21 for the answer"):
        sampler.sample(prompt, inputs=[5] * 21)


def test_blocks_must_be_whole_pages(model: CausalLM, ops: Backend) -> None:
    with pytest.raises(ProfilerError, match="block size 12 is no multiple of page size 8"):
        Sampler(model, ops, page_size=8, block_size=12, answer_tokens=4)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_key_that_is_not_finite_spoils_its_own_block_only(
    sampler: Sampler,
    ops: Backend,
    profile: Profile,
    make_prompt: MakePrompt,
    poison: float,
) -> None:
    sample = sampler.sample(make_prompt(160), keep_all=True)
    clean = Choice(sample, ops, 3, profile)
    methods = standard_methods(profile)
    before = {method.name: clean.chosen(method) for method in methods}
    sample.kv.k[1][9 * sample.block_size + 2] = poison
    choice = Choice(sample, ops, 3, profile)
    for method in methods:
        chosen = choice.chosen(method)
        assert torch.equal(chosen.sum(1), before[method.name].sum(1))  # as many blocks as before
        assert torch.equal(chosen[[0, 2]], before[method.name][[0, 2]])
        assert chosen[:, [0, -1]].all()
        # Where the block was chosen, another one takes its place; else nothing changes.
        assert (chosen ^ before[method.name])[1].sum() <= 2
        policy = choice.policy(method)
        if isinstance(policy, OnDemand):
            q = sample.answer_q[1]
            shown, expected = (one.policy(method).blocks(1, q, 0.25) for one in (choice, clean))
            assert shown[:, 9].sum() <= expected[:, 9].sum()
            assert (shown ^ expected).sum() <= 2 * len(q)


def test_nan_in_a_window_ranks_last(
    sampler: Sampler, ops: Backend, make_prompt: MakePrompt
) -> None:
    sample = sampler.sample(make_prompt(160))
    sample.kv.k[1][9 * sample.block_size] = torch.nan
    evidence = [LayerEvidence(sample, ops, layer, 3) for layer in range(3)]
    for name in ("window-32-max", "window-32-mean", "mean", "quest", "window-16-max+quest"):
        scores = score_layers(selector(name), evidence)
        assert np.argmin(scores[1]) == 9
        assert np.isfinite(np.delete(scores[1], 9)).all()


def test_fetching_goes_on_beside_a_spoiled_block(
    sampler: Sampler, ops: Backend, profile: Profile, make_prompt: MakePrompt
) -> None:
    sample = sampler.sample(make_prompt(160))
    method = Method(
        selector="sinks-recent",
        budget="uniform",
        fraction=0.1,
        demand=Demand(digest="mean", layers="all"),
    )
    clean = Choice(sample, ops, 3, profile).policy(method)
    expected = clean.blocks(1, sample.answer_q[1], sample.scale)
    unwanted = int((~expected[-1]).nonzero()[0, 0])
    sample.kv.k[1][unwanted * sample.block_size] = torch.nan
    spoiled = Choice(sample, ops, 3, profile).policy(method)
    assert torch.equal(spoiled.blocks(1, sample.answer_q[1], sample.scale), expected)


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def test_folders_that_hold_no_model(folder: Path, tmp_path: Path) -> None:
    half = copied(folder, tmp_path / "half")
    weights = half / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    bare = copied(folder, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    torn = copied(folder, tmp_path / "torn")
    (torn / "config.json").write_text('{"model_type": ')
    (tmp_path / "empty").mkdir()
    for name in ("half", "bare", "torn", "empty", "missing"):
        with pytest.raises(ProfilerError, match=f"{name} cannot be loaded as a causal language"):
            CausalLM(tmp_path / name, torch.float32)


def test_a_model_of_another_build_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "gpt")
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=300, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(other)
    with pytest.raises(
        ProfilerError, match=r"gpt: a gpt2 model has no .*only plain decoder models"
    ):
        CausalLM(other, torch.float32)


def test_a_config_without_the_size_of_its_context(folder: Path, tmp_path: Path) -> None:
    """Fields that every Llama config has by default cannot be missing; a value of its own is taken as it is."""
    other = copied(folder, tmp_path / "small")
    path = other / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 64}))
    assert CausalLM(other, torch.float32).shape.context == 64
