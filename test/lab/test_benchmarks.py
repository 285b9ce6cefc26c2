"""The benchmark scripts' settings and their own arithmetic, without any server."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from smartgen_lab.measure import load_scenario

FOLDER = Path(__file__).parents[2] / "benchmark"
NAMES = (
    "agreement",
    "cpu_speed",
    "idle_cpu",
    "layerwise_vs_stock",
    "prompt_statistics",
    "serving",
)


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script as its own folder sees it, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in (*NAMES, "arguments", "main"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_its_scenario_is_complete_and_has_nothing_else(name: str, benchmark_module: Any) -> None:
    settings = load_scenario(benchmark_module(name).Settings, FOLDER / "scenarios" / f"{name}.toml")
    assert settings.as_dict()["seed"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_model_is_named_with_its_remedy(
    name: str, benchmark_module: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--model", "/no/such/folder"])
    script = benchmark_module(name)
    with pytest.raises(SystemExit) as caught:
        script.run(script.main)
    assert caught.value.code == 2
    assert "smartgen model fetch" in capsys.readouterr().err


def test_differences_are_counted_up_to_where_texts_part(benchmark_module: Any) -> None:
    agreement = benchmark_module("agreement")
    ours = agreement.Said(token_ids=(1, 2, 3), top=({1: -0.1}, {2: -0.5, 9: -1.0}, {3: -0.2}))
    theirs = agreement.Said(token_ids=(1, 7, 3), top=({1: -0.2}, {7: -0.4, 2: -0.6}, {3: -0.9}))
    found = agreement.difference([ours], [theirs])
    assert found.first == pytest.approx([0.1])
    assert found.second == pytest.approx([0.1])
    assert found.later == []
    assert found.equal_texts == 0
