import math
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from smartgen.profile import DIGESTS, Identity, generic
from smartgen.select import (
    Evidence,
    MissingEvidence,
    SelectError,
    UnknownSelector,
    always,
    known_selectors,
    order,
    plan,
    score_layers,
    selector,
    solve_bytes,
)

HEADS = 4
PROFILE = generic(
    Identity(
        model="acme/tiny",
        config_sha256="0" * 64,
        dtype="float32",
        page_size=8,
        block_size=8,
        layers=3,
        heads=HEADS,
        kv_heads=2,
        head_size=8,
    )
)


@dataclass
class Drawn(Evidence):
    """A causal prompt with random attention; its rows sum to 1."""

    tokens: int
    layer: int = 1
    layers: int = 3
    block_size: int = 8

    def all_mass(self):
        drawn = np.random.default_rng(self.layer).random((self.tokens, HEADS, self.blocks))
        drawn *= np.arange(self.blocks) * self.block_size <= np.arange(self.tokens)[:, None, None]
        return (drawn / drawn.sum(axis=2, keepdims=True)).astype(np.float32)

    def window_mass(self, queries):
        return self.all_mass()[-queries:]

    def accumulated_mass(self):
        return self.all_mass().sum(axis=0)

    def digest_mass(self, kind):
        return self.all_mass()[-1] + np.float32(0.01 * DIGESTS.index(kind))

    def decoded_mass(self):
        return self.all_mass()[::2].mean(axis=0)


@dataclass
class Bare(Evidence):
    """Nothing was gathered."""

    tokens: int = 100
    layer: int = 0
    layers: int = 3
    block_size: int = 8


EVERY = (
    "random",
    "random-7",
    "sinks-recent",
    "accumulated",
    "accumulated-mean",
    "position",
    *DIGESTS,
    "oracle",
    "oracle-max",
    "window-1-mean",
    "window-16-max",
    "window-32-headmax",
    "window-1024-meanmax",
    "window-16-max+position",
    "oracle+random+oracle",
)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 100])
def test_every_selector_scores_every_block_of_every_prompt(name, tokens):
    rule = selector(name, PROFILE)
    assert rule.name == name
    scores = score_layers(rule, [Drawn(tokens, layer) for layer in range(3)])
    assert scores.dtype == np.float32
    assert scores.shape == (3, math.ceil(tokens / 8))
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", EVERY)
def test_a_selector_repeats_itself(name):
    once, again = (score_layers(selector(name, PROFILE), [Drawn(60)]) for _ in range(2))
    assert (once == again).all()


@pytest.mark.parametrize("name", EVERY)
def test_evidence_that_is_missing_is_named(name):
    needed = {"random", "random-7", "sinks-recent", "position"}
    if name in needed:
        score_layers(selector(name, PROFILE), [Bare()])
        return
    with pytest.raises(MissingEvidence, match=r"mass.* was not gathered for this request; use"):
        score_layers(selector(name, PROFILE), [Bare()])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("window-9-mean", [1.25, 0.5, 1.0]),
        ("window-9-max", [3.0, 1.0, 4.0]),
        ("window-9-headmax", [1.5, 0.5, 2.0]),
        ("window-9-meanmax", [2.5, 1.0, 2.0]),
    ],
)
def test_pools_of_a_window(name, expected):
    class Two(Bare):
        def window_mass(self, queries):
            # [2 queries, 2 heads, 3 blocks]
            return np.array([[[3, 0, 0], [2, 1, 0]], [[0, 1, 0], [0, 0, 4]]], dtype=np.float32)

    assert selector(name).score(Two(tokens=24)).tolist() == expected


def test_the_mean_of_accumulated_attention_counts_who_could_look():
    class Even(Bare):
        def accumulated_mass(self):
            return np.full((HEADS, self.blocks), 2.0, dtype=np.float32)

    evidence = Even(tokens=20)
    assert evidence.viewers().tolist() == [20, 12, 4]
    assert selector("accumulated-mean").score(evidence).tolist() == pytest.approx([0.1, 1 / 6, 0.5])


def test_position_spreads_bins_over_blocks():
    profile = msgspec.structs.replace(PROFILE, position=((0.5, 0.1, 0.1, 0.3),) * 3)
    rule = selector("position", profile)
    assert rule.score(Bare(tokens=64)).tolist() == pytest.approx(
        [0.25, 0.25, 0.05, 0.05, 0.05, 0.05, 0.15, 0.15]
    )
    assert rule.score(Bare(tokens=16)).tolist() == pytest.approx([0.6, 0.4])
    # The last block holds 2 of 10 tokens: the last bin but for its first fifth.
    assert rule.score(Bare(tokens=10)).tolist() == pytest.approx([0.76, 0.24])


def test_position_needs_a_profile_of_this_model():
    with pytest.raises(SelectError, match="'position' reads the profile"):
        selector("position")
    with pytest.raises(SelectError, match="profile has 3 layers and the model 4"):
        selector("position", PROFILE).score(Bare(layers=4))


def test_sinks_then_the_latest():
    assert selector("sinks-recent").score(Bare(tokens=32)).tolist() == [4, 1, 2, 3]


def test_random_differs_by_seed_and_layer():
    drawn = {
        tuple(selector(name).score(Bare(layer=layer)).tolist())
        for name in ("random", "random-1", "random-2")
        for layer in range(3)
    }
    assert len(drawn) == 9


def test_a_combination_adds_ranks():
    class Both(Bare):
        def accumulated_mass(self):
            return np.array([[5, 5, np.nan, 70]], dtype=np.float32)

        def decoded_mass(self):
            return np.array([[0.1, 0.2, 0.4, 0.3]], dtype=np.float32)

    # Ranks of 0..3: 1.5 1.5 0 3 and 0 1 3 2.
    scores = selector("accumulated+oracle").score(Both(tokens=32))
    assert scores.tolist() == pytest.approx([0.5, 2.5 / 3, 1.0, 5 / 3])


@pytest.mark.parametrize(
    "name",
    [
        "",
        "+",
        "oracle+",
        "Oracle",
        "window",
        "window-0-max",
        "window-16",
        "window-16-sum",
        "window--1-max",
        "window-1.5-max",
        "means-3",
        "random-",
        "oracle ",
        "oracle\n",
    ],
)
def test_an_unknown_name_is_refused_with_those_that_exist(name):
    with pytest.raises(UnknownSelector) as caught:
        selector(name, PROFILE)
    assert all(known in str(caught.value) for known in known_selectors())


def test_too_long_a_window_is_refused():
    with pytest.raises(SelectError, match=r"looks at 1025 queries, must be 1\.\.1024"):
        selector("window-1025-max")


@dataclass
class Broken:
    result: object
    name: str = "broken"

    def score(self, evidence):
        return self.result


@pytest.mark.parametrize(
    "result",
    [np.zeros(12, np.float32), np.zeros((1, 13), np.float32), np.zeros(13, np.int64), None, 1.0],
)
def test_a_result_of_another_shape_or_type_is_refused(result):
    with pytest.raises(SelectError, match=r"selector 'broken' returned .*, must be float32 \[13\]"):
        score_layers(Broken(result), [Bare()])


def test_what_is_not_finite_or_does_not_fit_comes_last():
    scores = score_layers(
        Broken(np.array([np.nan, np.inf, -np.inf, 1e300, 0.5])), [Bare(tokens=40)]
    )
    assert scores.tolist() == [[-np.inf] * 4 + [0.5]]


def test_nothing_to_score_is_refused():
    with pytest.raises(SelectError, match="a prompt of 0 tokens has no blocks to score"):
        score_layers(selector("random"), [Bare(tokens=0)])
    with pytest.raises(SelectError, match="there is no evidence to score"):
        score_layers(selector("random"), [])


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 500, 8192])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_from_evidence_to_plan(tokens, fraction):
    rule = selector("random+sinks-recent")
    scores = score_layers(rule, [Bare(tokens=tokens, layer=layer) for layer in range(3)])
    budget = solve_bytes(PROFILE, tokens=tokens, fraction=fraction)
    forced = always(tokens, 8)
    selected = plan(scores, budget.counts, forced)
    assert selected.blocks_per_layer == budget.counts
    assert selected.fraction == pytest.approx(budget.fraction)
    rest = order(scores, selected, budget.layer_kl)
    assert len(rest) == 3 * budget.blocks - sum(budget.counts)


def test_what_follows_an_attended_block_counts_with_it():
    evidence = Drawn(tokens=64)
    alone = selector("window-4-max").score(evidence)
    spread = selector("window-4-max-next").score(evidence)
    assert spread[0] == alone[0]
    assert np.array_equal(spread[1:], np.maximum(alone[1:], np.float32(0.4) * alone[:-1]))


def test_a_broken_score_spoils_no_block_behind_it():
    class Broken(Drawn):
        def window_mass(self, queries):
            mass = super().window_mass(queries)
            mass[:, :, 2], mass[:, :, 4] = np.nan, np.inf
            return mass

    spread = selector("window-4-max-next").score(Broken(tokens=64))
    assert np.isfinite(spread[[0, 1, 3, 5, 6, 7]]).all()
