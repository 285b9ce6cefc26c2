"""Tables fitted from a few made measurements, checked by hand."""

from typing import Any

import msgspec
import numpy as np
import pytest
from smartgen.profile import LengthBin, Profile, Sensitivity
from smartgen.profiler import fit
from smartgen.profiler.options import Options
from smartgen.select import solve_bytes

OPTIONS = Options(
    signals=("window-16-max", "accumulated"),
    signal_fractions=(0.1, 0.2),
    fractions=(0.05, 0.1, 0.5),
    length_bins=(1000, 2000),
)


def signals(window: list[float], accumulated: list[float]) -> dict[str, Any]:
    return {"signals": {"window-16-max": window, "accumulated": accumulated}}


def test_the_best_signal_has_the_least_geometric_mean_over_fractions() -> None:
    # Means over prompts: 0.4, 0.1 and 0.9, 0.01; the first is better on average, the second by ratio.
    measured = [signals([0.3, 0.1], [0.9, 0.01]), signals([0.5, 0.1], [0.9, 0.01])]
    signal = fit.best_signal(measured, OPTIONS)
    assert signal.selector == "accumulated"
    assert signal.window == 0
    assert signal.tried == {"window-16-max": 0.2, "accumulated": pytest.approx(0.09487, rel=1e-3)}


def test_a_window_says_how_many_queries_it_looks_at() -> None:
    signal = fit.best_signal([signals([0.1, 0.1], [0.2, 0.2])], OPTIONS)
    assert (signal.selector, signal.window) == ("window-16-max", 16)


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("window-16-max+window-32-mean", 32),
        ("window-48-max+window-32-mean", 48),
        ("quest+window-24-headmax", 24),
        ("accumulated+quest", 0),
    ],
)
def test_a_combination_looks_at_the_longest_of_its_windows(name: str, window: int) -> None:
    measured = [{"signals": {name: [0.1]}}]
    assert fit.best_signal(measured, Options(signals=(name,))).window == window


def test_a_signal_without_any_loss_is_no_error() -> None:
    assert fit.best_signal([signals([0.0, 0.0], [0.0, 0.1])], OPTIONS).selector == "window-16-max"


def prompt(tokens: int, *kl: float) -> dict[str, Any]:
    """Two layers, the second losing twice as much."""
    return {"tokens": tokens, "sensitivity": [[*kl], [2 * x for x in kl]]}


def test_sensitivity_is_binned_by_length() -> None:
    measured = [
        prompt(999, 0.16, 0.04, 0.01),
        prompt(500, 0.64, 0.36, 0.01),
        prompt(1000, 0.36, 0.16, 0.01),
    ]
    table = fit.sensitivity(measured, OPTIONS)
    assert table.fractions == (0.05, 0.1, 0.5, 1.0)
    assert [b.below_tokens for b in table.bins] == [1000, 2000, None]
    assert [b.prompts for b in table.bins] == [2, 1, 0]
    short, middle, long = table.bins
    # Squares of the mean root, so that no prompt decides alone.
    kl = np.array([0.36, 0.16, 0.01, 0.0])
    np.testing.assert_allclose(short.kl, [kl, 2 * kl], rtol=1e-3)
    # Standard error of two values: half of their distance.
    spread = np.array([0.24, 0.16, 0.0, 0.0])
    np.testing.assert_allclose(short.spread, [spread, 2 * spread], atol=1e-6)
    assert middle.kl[0] == (0.36, 0.16, 0.01, 0.0)
    # One prompt says nothing of the spread, which is then as large as the value.
    assert middle.spread == middle.kl
    # A bin without prompts: that of all.
    np.testing.assert_allclose(long.kl, [kl, 2 * kl], rtol=1e-3)
    assert [table.bin_index(n) for n in (1, 999, 1000, 1999, 2000, 10**6)] == [0, 0, 1, 1, 2, 2]


def test_position_shares_are_means_that_sum_to_one() -> None:
    measured = [{"position": [[0.2, 0.6], [0.0, 0.0]]}, {"position": [[0.4, 0.4], [0.0, 0.0]]}]
    assert fit.position(measured) == ((0.375, 0.625), (0.0, 0.0))


def fetched(*first: float) -> list[dict[str, Any]]:
    """Two prompts whose mean share in the first step is `first`, by layer."""
    return [
        {"tokens": tokens, "first": [scale * share for share in first]}
        for tokens, scale in ((600, 0.5), (1400, 1.5))
    ]


@pytest.mark.parametrize(
    ("allowed", "layers"),
    [(0.0, (1,)), (0.0019, (1,)), (0.0041, (1, 2)), (0.0099, (1, 2)), (0.0101, (0, 1, 2))],
)
def test_on_demand_layers_are_those_that_save_most_per_block(
    profile: Profile, allowed: float, layers: tuple[int, ...]
) -> None:
    """Never none, and no more than the first step is allowed to fetch."""
    left = solve_bytes(profile, tokens=1000, fraction=0.1).layer_kl
    first = (0.006, 0.002, 0.002)
    ratios = [kl / share for kl, share in zip(left, first, strict=True)]
    assert ratios[1] > ratios[2] > ratios[0]
    options = Options(on_demand_base=0.1, on_demand_first_step=allowed)
    assert fit.on_demand_layers(profile, fetched(*first), options) == layers


def test_a_layer_that_asks_for_nothing_costs_nothing(profile: Profile) -> None:
    options = Options(on_demand_first_step=0.001)
    assert fit.on_demand_layers(profile, fetched(0.0, 0.5, 0.5), options) == (0,)


def test_targets_are_solved_within_their_own_bin(profile: Profile) -> None:
    """Also where the first bin ends before the shortest prompts that are usual."""
    rows = profile.sensitivity.bins[0].kl
    for ends in ((256, 400, None), (1000, 2000, None), (None,)):
        # In each bin another layer is the sensitive one.
        bins = tuple(
            LengthBin(below_tokens=end, prompts=1, kl=kl, spread=kl)
            for index, end in enumerate(ends)
            for kl in [tuple(rows[1] if n == index else rows[0] for n in range(3))]
        )
        sensitivity = msgspec.structs.replace(profile.sensitivity, bins=bins)
        binned = msgspec.structs.replace(profile, sensitivity=sensitivity)
        targets = fit.targets(binned, Options(targets=(0.3, 0.6)))
        assert [(t.below_tokens, t.fraction) for t in targets] == [
            (end, fraction) for end in ends for fraction in (0.3, 0.6)
        ]
        for index in range(len(ends)):
            shares = targets[2 * index].layer_fractions
            assert shares[index] == max(shares) > min(shares)
        for target in targets:
            assert sum(target.layer_fractions) / 3 <= target.fraction + 0.05
            assert target.predicted_kl > 0


def test_ranking_correlation() -> None:
    def summed(*kl: float) -> Sensitivity:
        rows = tuple((x, 0.0) for x in kl)
        return Sensitivity(
            fractions=(0.1, 1.0),
            bins=(LengthBin(below_tokens=None, prompts=1, kl=rows, spread=rows),),
        )

    rising = summed(1, 2, 3, 4)
    assert fit.ranking_correlation(rising, rising) == pytest.approx(1.0)
    assert fit.ranking_correlation(rising, summed(1, 20, 300, 4000)) == pytest.approx(1.0)
    assert fit.ranking_correlation(rising, summed(4, 3, 2, 1)) == pytest.approx(-1.0)
    # Spearman by hand: 1 - 6 * 2 / (4 * 15).
    assert fit.ranking_correlation(rising, summed(2, 1, 3, 4)) == pytest.approx(0.8)


def test_solved_targets_agree_with_the_solver(profile: Profile) -> None:
    (target,) = fit.targets(profile, Options(targets=(0.4,)))
    budget = solve_bytes(profile, tokens=(512 + 4096) // 2, fraction=0.4)
    assert target.predicted_kl == budget.predicted_kl
