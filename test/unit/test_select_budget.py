import itertools
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smartgen.profile import Identity, LengthBin, Profile, Sensitivity, generic
from smartgen.select import SelectError, always, solve_bytes, solve_kl

FRACTIONS = (0.05, 0.1, 0.2, 0.5, 1.0)
BLOCK = 32


def profile_of(*tables, fractions=FRACTIONS, ends=(None,)) -> Profile:
    """A profile with one table [layers][fractions - 1] of KL per length bin."""
    layers = len(tables[0])
    identity = Identity(
        model="acme/tiny",
        config_sha256="0" * 64,
        dtype="float32",
        page_size=16,
        block_size=BLOCK,
        layers=layers,
        heads=1,
        kv_heads=1,
        head_size=1,
    )
    closed = [tuple((*row, 0.0) for row in table) for table in tables]
    bins = tuple(
        LengthBin(below_tokens=end, prompts=1, kl=kl, spread=kl)
        for end, kl in zip(ends, closed, strict=True)
    )
    return msgspec.structs.replace(
        generic(identity), sensitivity=Sensitivity(fractions=fractions, bins=bins)
    )


# Any order of values: a measured table need not be monotone.
kls = st.floats(0, 2) | st.floats(0, 1e-4) | st.just(0.0)
tables = st.lists(st.tuples(kls, kls, kls, kls), min_size=1, max_size=5)
prompts = st.integers(1, 300) | st.integers(1, 8192)
shares = st.floats(0, 1)


@settings(deadline=None)
@given(tables, prompts, shares)
def test_a_byte_budget_is_kept_and_holds_the_forced_blocks(table, tokens, fraction):
    profile = profile_of(table)
    budget = solve_bytes(profile, tokens=tokens, fraction=fraction)
    forced = len(always(tokens, BLOCK))
    assert budget.blocks == math.ceil(tokens / BLOCK)
    limit = round(fraction * len(table) * budget.blocks)
    assert sum(budget.counts) <= max(limit, forced * len(table))
    assert all(forced <= count <= budget.blocks for count in budget.counts)
    # Below the limit of single steps, no block of the budget is left over.
    assert sum(budget.counts) == max(limit, forced * len(table))


@settings(deadline=None)
@given(tables, prompts, shares, shares)
def test_more_bytes_take_nothing_away(table, tokens, one, other):
    profile = profile_of(table)
    small, large = (
        solve_bytes(profile, tokens=tokens, fraction=share) for share in sorted((one, other))
    )
    assert all(a <= b for a, b in zip(small.counts, large.counts, strict=True))
    assert all(a >= b for a, b in zip(small.layer_kl, large.layer_kl, strict=True))
    assert small.fraction <= large.fraction


@settings(deadline=None)
@given(tables, prompts, st.floats(0, 5))
def test_a_kl_target_is_met_by_the_smallest_split_of_its_kind(table, tokens, kl):
    profile = profile_of(table)
    budget = solve_kl(profile, tokens=tokens, kl=kl)
    assert budget.predicted_kl <= kl + 1e-9
    blocks = sum(budget.counts)
    same = solve_bytes(profile, tokens=tokens, fraction=budget.fraction)
    assert same.counts == budget.counts
    if blocks > len(table) * len(always(tokens, BLOCK)):
        fewer = (blocks - 1) / (budget.blocks * len(table))
        assert solve_bytes(profile, tokens=tokens, fraction=fewer).predicted_kl > kl - 1e-9


@settings(deadline=None)
@given(st.lists(st.floats(1e-4, 2), min_size=1, max_size=3), shares)
def test_no_split_of_convex_curves_loses_less(least, fraction):
    """Against every possible split. KL + c falls by a factor of five from point to point."""
    fractions = (0.2, 0.4, 0.6, 0.8, 1.0)
    table = [(156 * kl, 31 * kl, 6 * kl, kl) for kl in least]
    tokens, blocks, forced = BLOCK * 9, 9, 2
    alone = [profile_of([row], fractions=fractions) for row in table]
    curves = [
        [
            solve_bytes(profile, tokens=tokens, fraction=count / blocks).predicted_kl
            for count in range(blocks + 1)
        ]
        for profile in alone
    ]
    limit = max(round(fraction * blocks * len(table)), forced * len(table))
    best = min(
        sum(curve[count] for curve, count in zip(curves, counts, strict=True))
        for counts in itertools.product(range(forced, blocks + 1), repeat=len(table))
        if sum(counts) <= limit
    )
    budget = solve_bytes(profile_of(table, fractions=fractions), tokens=tokens, fraction=fraction)
    assert budget.predicted_kl == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_the_measured_points_are_predicted():
    row = (0.4, 0.1, 0.02, 0.003)
    profile = profile_of([row])
    for fraction, kl in zip(FRACTIONS, (*row, 0.0), strict=True):
        budget = solve_bytes(profile, tokens=BLOCK * 100, fraction=fraction)
        assert budget.counts == (round(fraction * 100),)
        assert budget.predicted_kl == pytest.approx(kl, abs=1e-12)


def test_the_sensitive_layer_gets_the_blocks():
    free, dear = (1e-6, 1e-6, 0.0, 0.0), (0.5, 0.2, 0.05, 0.01)
    budget = solve_bytes(profile_of([free, dear, free]), tokens=BLOCK * 100, fraction=0.2)
    assert sum(budget.counts) == 60
    assert budget.counts[1] > 50
    assert budget.layer_kl[1] == max(budget.layer_kl)


def test_layers_that_are_alike_get_alike():
    profile = profile_of([(0.04, 0.03, 0.03, 0.0)] * 7)
    for percent in range(101):
        counts = solve_bytes(profile, tokens=BLOCK * 200, fraction=percent / 100).counts
        assert max(counts) - min(counts) <= 1


def test_a_smaller_fraction_never_looks_better():
    budget = solve_bytes(
        profile_of([(0.0, 0.0, 0.3, 0.0)]), tokens=BLOCK * 100, fraction=FRACTIONS[0]
    )
    assert budget.predicted_kl >= 0.3 - 1e-12


def test_the_length_bin_of_the_prompt_counts():
    steep, flat = (1.0, 0.5, 0.2, 0.1), (0.01, 0.005, 0.002, 0.001)
    profile = profile_of([steep, flat], [flat, steep], ends=(1000, None))
    short = solve_bytes(profile, tokens=999, fraction=0.4).counts
    long = solve_bytes(profile, tokens=1000, fraction=0.4).counts
    assert short[0] > short[1]
    assert long[0] < long[1]


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32])
@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_a_prompt_of_one_block_is_sent_whole(tokens, fraction):
    budget = solve_bytes(profile_of([(1, 1, 1, 1)] * 2), tokens=tokens, fraction=fraction)
    assert budget.counts == (1, 1)
    assert budget.predicted_kl == 0
    assert budget.fraction == 1


def test_a_long_prompt_is_decided_several_blocks_at_a_time():
    profile = profile_of([(0.4, 0.1, 0.02, 0.003), (0.1, 0.05, 0.02, 0.01)])
    blocks = 4001
    for fraction in (0.0, 0.1, 0.333, 0.9, 1.0):
        budget = solve_bytes(profile, tokens=BLOCK * blocks, fraction=fraction)
        limit = max(round(fraction * 2 * blocks), 4)
        assert limit - 16 < sum(budget.counts) <= limit


def test_a_steep_table_stays_finite():
    profile = profile_of([(2.0, 1e-9)], fractions=(0.5, 0.501, 1.0))
    budget = solve_bytes(profile, tokens=BLOCK * 1000, fraction=0.0)
    assert math.isfinite(budget.predicted_kl)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_an_impossible_share_is_refused(fraction):
    with pytest.raises(SelectError, match=r"fraction is .*, must be 0\.\.1"):
        solve_bytes(profile_of([(1, 1, 1, 1)]), tokens=1, fraction=fraction)


@pytest.mark.parametrize("kl", [-0.1, math.nan])
def test_an_impossible_target_is_refused(kl):
    with pytest.raises(SelectError, match=r"kl is .* nats, must be at least 0"):
        solve_kl(profile_of([(1, 1, 1, 1)]), tokens=1, kl=kl)


@pytest.mark.parametrize("tokens", [0, -1])
def test_an_empty_prompt_is_refused(tokens):
    with pytest.raises(SelectError, match=f"a prompt of {tokens} tokens has no blocks"):
        solve_bytes(profile_of([(1, 1, 1, 1)]), tokens=tokens, fraction=0.5)
