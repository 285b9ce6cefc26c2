"""The profiles in the package: each loads, is one of its kind, and is found by the model it was measured on."""

from importlib.resources import files

import msgspec
import pytest
from smartgen import profile as profiles
from smartgen.select import selector, solve_bytes

SHIPPED = sorted(
    (path for path in files("smartgen.profile").joinpath("shipped").iterdir()),
    key=lambda path: path.name,
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_profile_is_found_by_its_model_and_serves(path):
    profile = profiles.load(path.read_bytes(), name=path.name)
    assert profile.measured
    assert profiles.shipped(profile.identity) == profile
    other = msgspec.structs.replace(profile.identity, page_size=2 * profile.identity.page_size)
    assert profiles.shipped(other) is None
    selector(profile.signal.selector, profile)
    budget = solve_bytes(profile, tokens=2000, fraction=0.2)
    assert len(budget.counts) == profile.identity.layers
    assert budget.fraction <= 0.2 + 1e-3
