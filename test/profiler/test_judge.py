"""Rows of the judge: what each method costs, apart by where its bytes come from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from smartgen.ops import Backend
from smartgen.profile import Profile
from smartgen.profiler.judge import Judge, floor_of
from smartgen.profiler.measure import Measure
from smartgen.profiler.methods import Choice, Demand, Method
from smartgen.profiler.policies import Fixed, OnDemand
from smartgen.profiler.prompts import Prompt
from smartgen.profiler.sample import Sampler
from smartgen.profiler.scoring import compare, negative_log_likelihood
from smartgen.profiler.summary import Interval, mean_of, ratio_of
from smartgen.select import MissingEvidence, UnknownSelector

STATIC = Method(selector="window-32-mean", budget="uniform", fraction=0.2)
PROFILED = Method(selector="window-32-mean", budget="profile", fraction=0.2)
FETCHING = replace(PROFILED, demand=Demand(digest="means-4", layers="profile"))
FETCHING_ALL = replace(STATIC, demand=Demand(digest="quest", layers="all", top=0.3))

Row = dict[str, Any]


@pytest.fixture(scope="module")
def prompt(make_prompt: Callable[..., Prompt]) -> Prompt:
    return make_prompt(160, seed=1)


@pytest.fixture(scope="module")
def judged(
    sampler: Sampler, ops: Backend, profile: Profile
) -> Callable[[Prompt, Sequence[Method]], dict[str, Row]]:
    def judge(prompt: Prompt, methods: Sequence[Method]) -> dict[str, Row]:
        rows = Judge(sampler, ops, profile, methods, only_right=False).rows(prompt)
        assert [row["method"] for row in rows] == ["full", *(m.name for m in methods)]
        return {row["method"]: row for row in rows}

    return judge


def test_names_tell_methods_apart() -> None:
    names = [method.name for method in (STATIC, PROFILED, FETCHING, FETCHING_ALL)]
    assert names == [
        "window-32-mean/uniform/0.2",
        "window-32-mean/profile/0.2",
        "window-32-mean/profile/0.2+means-4/profile/0.1",
        "window-32-mean/uniform/0.2+quest/all/0.3",
    ]


def test_rows_say_what_was_there_and_what_it_cost(
    sampler: Sampler,
    prompt: Prompt,
    judged: Callable[..., dict[str, Row]],
) -> None:
    rows = judged(prompt, [STATIC, PROFILED])
    for row in rows.values():
        assert row["prompt"] == prompt.name
        assert (row["kind"], row["tokens"], row["scored"]) == ("random", 160, 6)
        assert row["retrieved"] is None
        assert "nll" not in row
    assert rows["full"]["base"] == 1.0
    for method in (STATIC, PROFILED):
        row = rows[method.name]
        assert row["base"] == pytest.approx(0.2, abs=0.01)
        assert row["kl"] > 0.01
        assert 0 <= row["agreement"] <= 1
        assert "fetched" not in row
        assert "digest" not in row
    assert rows[STATIC.name]["kl"] != rows[PROFILED.name]["kl"]


def test_base_digests_and_fetched_blocks_are_told_apart(
    prompt: Prompt,
    sampler: Sampler,
    ops: Backend,
    profile: Profile,
    judged: Callable[..., dict[str, Row]],
) -> None:
    rows = judged(prompt, [STATIC, PROFILED, FETCHING, FETCHING_ALL])
    sample = sampler.sample(prompt)
    choice = Choice(sample, ops, 3, profile)
    kv_bytes = 2 * 3 * 160 * 2 * 16 * 4  # K and V, layers, tokens, heads, size, float32
    assert rows[FETCHING.name]["base"] == rows[PROFILED.name]["base"]
    for method in (FETCHING, FETCHING_ALL):
        row, policy = rows[method.name], choice.policy(method)
        assert isinstance(policy, OnDemand)
        sampler.rows(sample, policy)
        steps = [
            sum(counts) / (3 * sample.blocks)
            for counts in zip(*policy.fetched.values(), strict=True)
        ]
        assert row["digest"] == pytest.approx(policy.digest_bytes / kv_bytes)
        assert row["fetched_first"] == pytest.approx(steps[0])
        assert row["fetched"] == pytest.approx(sum(steps))
        assert row["fetched_steps"] == pytest.approx(steps, abs=1e-6)
        assert row["fetched"] + row["base"] <= 1
    # One of three layers; half of K per block, means of 4 of 8 tokens: 1/8 of KV, of absent blocks.
    assert rows[FETCHING.name]["digest"] < 1 / 3 / 8
    assert rows[FETCHING.name]["fetched_first"] <= 0.1 / 3
    assert rows[FETCHING_ALL.name]["fetched"] > rows[FETCHING.name]["fetched"]
    assert rows[FETCHING_ALL.name]["kl"] < rows[STATIC.name]["kl"]


def test_everything_there_costs_nothing(
    prompt: Prompt, judged: Callable[..., dict[str, Row]]
) -> None:
    whole = replace(PROFILED, fraction=1.0)
    row = judged(prompt, [whole])[whole.name]
    assert (row["base"], row["kl"], row["agreement"]) == (1.0, 0.0, 1.0)


def test_a_profile_that_lets_no_layer_fetch(
    sampler: Sampler, ops: Backend, profile: Profile, prompt: Prompt
) -> None:
    on_demand = msgspec.structs.replace(profile.on_demand, layers=())
    still = msgspec.structs.replace(profile, on_demand=on_demand)
    row = Judge(sampler, ops, still, [FETCHING], only_right=True).rows(prompt)[1]
    assert (row["digest"], row["fetched_first"], row["fetched"]) == (0, 0, 0)
    assert row["fetched_steps"] == [0] * 6


def test_retrieval_counts_where_full_kv_is_right(
    sampler: Sampler, prompt: Prompt, judged: Callable[..., dict[str, Row]]
) -> None:
    sample = sampler.sample(prompt)
    tokenizer = sampler.model.tokenizer
    right = tokenizer.decode(sample.answer, skip_special_tokens=True)
    whole, sparse = replace(STATIC, fraction=1.0), replace(STATIC, fraction=0.05)
    rows = judged(replace(prompt, answer=right.upper()), [whole, sparse])
    assert rows["full"]["retrieved"] is True
    assert rows[whole.name]["retrieved"] is True
    assert rows[sparse.name]["retrieved"] is False
    rows = judged(replace(prompt, answer="not in any answer"), [whole])
    assert rows["full"]["retrieved"] is False
    assert rows[whole.name]["retrieved"] is None


def test_a_question_that_full_kv_answers_wrong_may_be_dropped(
    sampler: Sampler, ops: Backend, profile: Profile, prompt: Prompt
) -> None:
    judge = Judge(sampler, ops, profile, [STATIC], only_right=True)
    (full,) = judge.rows(replace(prompt, answer="not in any answer"))
    assert (full["method"], full["retrieved"]) == ("full", False)
    assert len(judge.rows(prompt)) == 2  # nothing asked, nothing wrong


def test_a_free_run_decides_not_the_told_answer(
    sampler: Sampler, ops: Backend, profile: Profile, prompt: Prompt
) -> None:
    """The first token comes from prefill, so an answer of it alone survives every restriction."""
    sample = sampler.sample(prompt)
    sparse = replace(STATIC, fraction=0.05)
    first = sampler.model.tokenizer.decode(sample.answer[:1])
    row = Judge(sampler, ops, profile, [sparse], only_right=True).rows(
        replace(prompt, answer=first)
    )[1]
    assert row["agreement"] < 1
    assert row["retrieved"] is True


def test_likelihood_of_what_really_follows(
    sampler: Sampler,
    prompt: Prompt,
    make_prompt: Callable[..., Prompt],
    judged: Callable[..., dict[str, Row]],
) -> None:
    follows = make_prompt(20, seed=5).tokens
    whole = replace(STATIC, fraction=1.0)
    rows = judged(replace(prompt, continuation=follows), [STATIC, whole])
    told = sampler.sample(prompt, inputs=follows[:-1])
    picked = [float(told.log_probs[i, token]) for i, token in enumerate(follows[1:])]
    assert rows["full"]["nll"] == pytest.approx(-sum(picked) / 19, rel=1e-5)
    assert rows[whole.name]["nll"] == pytest.approx(rows["full"]["nll"], rel=1e-6)
    assert rows[STATIC.name]["nll"] != pytest.approx(rows["full"]["nll"], rel=1e-3)


def test_measurements_are_of_the_masks_they_name(
    sampler: Sampler, ops: Backend, profile: Profile, prompt: Prompt
) -> None:
    sample = sampler.sample(prompt)
    measure = Measure(sampler, ops, sample)
    choice = Choice(sample, ops, 3, profile)

    def kl(mask: torch.Tensor) -> float:
        lost = compare(sample.log_probs, sampler.rows(sample, Fixed(mask))).kl
        return sum(lost) / len(lost)

    masks = [choice.chosen(replace(STATIC, fraction=fraction)) for fraction in (0.2, 0.4)]
    signals = measure.signals([STATIC.selector], (0.2, 0.4), None)
    assert signals == {STATIC.selector: pytest.approx([kl(mask) for mask in masks], rel=1e-4)}
    split = replace(STATIC, budget="profile", fraction=0.4)
    within = measure.signals([STATIC.selector], (0.4,), profile)
    assert within == {STATIC.selector: pytest.approx([kl(choice.chosen(split))], rel=1e-4)}
    table = measure.sensitivity(STATIC.selector, (0.2, 0.4))
    for layer in range(3):
        others = torch.arange(3)[:, None] != layer
        assert table[layer] == pytest.approx([kl(mask | others) for mask in masks], rel=1e-3)


def test_selectors_that_cannot_be_used(
    sampler: Sampler, ops: Backend, profile: Profile, prompt: Prompt
) -> None:
    for name, error in (("no-such", UnknownSelector), ("window-65-max", MissingEvidence)):
        method = replace(STATIC, selector=name)
        with pytest.raises(error):
            Judge(sampler, ops, profile, [method], only_right=True).rows(prompt)


def test_accumulated_attention_is_kept_for_who_asks(
    prompt: Prompt, judged: Callable[..., dict[str, Row]]
) -> None:
    method = replace(STATIC, selector="accumulated-mean")
    assert judged(prompt, [STATIC, method])[method.name]["kl"] > 0


def test_scores_by_hand() -> None:
    full = torch.tensor([[0.5, 0.5], [0.75, 0.25]]).log()
    restricted = torch.tensor([[0.25, 0.75], [0.75, 0.25]]).log()
    outcome = compare(full, restricted)
    expected = 0.5 * torch.tensor([2.0, 2 / 3]).log().sum()
    assert outcome.kl == pytest.approx([float(expected), 0.0], abs=1e-6)
    assert outcome.agree == [False, True]
    assert negative_log_likelihood(full, [1, 0]) == pytest.approx(0.4904, abs=1e-4)


def test_the_floor_compares_samples_of_the_same_inputs(sampler: Sampler, prompt: Prompt) -> None:
    sample = sampler.sample(prompt)
    again = sampler.sample(prompt, inputs=sample.inputs)
    outcome = floor_of(again, sample)
    assert outcome.kl == [0.0] * len(sample.inputs)
    assert all(outcome.agree)


def test_intervals() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 6.0])
    assert mean.value == 3.0
    assert mean.low < 2.0 < 4.0 < mean.high
    assert mean_of([0.1]) == Interval(0.1, 0.1, 0.1)
    # Of pairs: prompts differ by a factor of a hundred, the two methods always by two.
    ratio = ratio_of([2.0, 200.0, 20.0], [1.0, 100.0, 10.0])
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio_of([1.0], [0.0]).show(2) == "nan (nan-nan)"
