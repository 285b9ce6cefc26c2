"""Plugins, as a distribution on the path that brings an entry point."""

import sys

import numpy as np
import pytest
from smartgen.select import SelectError, UnknownSelector, known_selectors, selector

PLUGIN = """
import numpy as np

class Newest:
    name = "newest"

    def score(self, evidence):
        return np.arange(evidence.blocks, dtype=np.float32)

def make(profile):
    return Newest()

def fail(profile):
    raise RuntimeError("no licence")

def nothing(profile):
    return 3
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution on the path; its module is forgotten afterwards."""

    def install(entry_point: str, *, distribution: str = "acme-select") -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / "acme_select.py").write_text(PLUGIN)
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[smartgen.selectors]\n{entry_point}\n")
        monkeypatch.syspath_prepend(str(folder))

    yield install
    sys.modules.pop("acme_select", None)


class FiveBlocks:
    blocks = 5


def test_a_plugin_is_used_like_a_built_in(install):
    with pytest.raises(UnknownSelector):
        selector("newest")
    install("newest = acme_select:make")
    assert "newest" in known_selectors()
    assert "acme_select" not in sys.modules
    assert selector("newest").score(FiveBlocks()).tolist() == [0, 1, 2, 3, 4]
    assert selector("newest+random").name == "newest+random"


@pytest.mark.parametrize(
    ("entry_point", "cause"),
    [
        ("newest = acme_select:fail", "RuntimeError: no licence"),
        ("newest = acme_select:absent", "AttributeError"),
        ("newest = acme_absent:make", "ModuleNotFoundError"),
        ("newest = acme_select:nothing", "is a int without a name and a score method"),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_distribution(install, entry_point, cause):
    install(entry_point)
    assert selector("random").name == "random"
    with pytest.raises(SelectError, match=f"selector 'newest' of acme-select .*{cause}"):
        selector("newest")


@pytest.mark.parametrize("name", ["window-16-max", "window-5-mean", "oracle", "random-3", "a+b"])
def test_a_plugin_may_not_take_a_built_in_name(install, name):
    install(f"{name} = acme_select:make")
    with pytest.raises(SelectError, match="acme-select brings a selector named"):
        selector("random")


def test_two_plugins_of_one_name_are_refused(install):
    install("newest = acme_select:make")
    install("newest = acme_select:make", distribution="other-select")
    with pytest.raises(SelectError, match="comes from other-select and acme-select"):
        selector("newest")
    assert np.isfinite(selector("random").score(FiveLayers())).all()


class FiveLayers(FiveBlocks):
    layer = 0
