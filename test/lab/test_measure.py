"""The measuring rules as code: prompts, settings, limits, spread, result files."""

import json
import string
from contextlib import suppress
from pathlib import Path

import pytest
from smartgen_lab.measure import (
    Limits,
    Prompts,
    Records,
    Scenario,
    fingerprint,
    load_scenario,
    spread,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split


class Small(Scenario, frozen=True, kw_only=True):
    runs: int
    ratio: float = 1.0


def test_a_scenario_takes_overrides_that_are_given(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("runs = 3\n")
    assert load_scenario(Small, file, runs=None, ratio=2.0) == Small(runs=3, ratio=2.0)


@pytest.mark.parametrize("text", ["runs = 3\nspeed = 1", 'runs = "many"', "ratio = 1.0", "runs ="])
def test_a_scenario_with_a_mistake_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(SystemExit, match=r"scenario .*s\.toml: "):
        load_scenario(Small, file)


def test_a_result_file_can_be_read_after_a_run_was_broken_off(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "r.jsonl"
    with suppress(KeyboardInterrupt), Records(file, "example", {"runs": 3}) as records:
        records.add("request", ttst_s=1.5)
        raise KeyboardInterrupt
    header, request = (json.loads(line) for line in file.read_text().splitlines())
    assert header["kind"] == "header"
    assert header["settings"] == {"runs": 3}
    assert {"cpu", "cores", "versions", "commit", "load", "command"} <= header.keys()
    assert request == {"kind": "request", "ttst_s": 1.5}


def test_a_machine_without_git_has_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    assert fingerprint()["commit"] is None


def test_a_spread_needs_a_value() -> None:
    assert spread([3.0, 1.0, 2.0]).show() == "2.00 (1.00-3.00)"
    with pytest.raises(ValueError, match="no value"):
        spread([])


def limits(prefill_s: float, move_s: float, chunks: int = 1) -> Limits:
    return Limits(prefill_s=prefill_s, move_s=move_s, step_s=0.1, layers=10, chunks=chunks)


def test_full_transfer_in_one_chunk_adds_all_of_the_transfer() -> None:
    assert limits(2.0, 3.0).full_s == pytest.approx(2.0 + 3.0 + 0.1)


def test_layerwise_hides_all_but_the_last_layer_on_a_fast_link_and_prefill_on_a_slow_one() -> None:
    assert limits(2.0, 1.0).layerwise_s == pytest.approx(2.0 + 0.1 + 0.1)
    assert limits(2.0, 8.0).layerwise_s == pytest.approx(2.0 + 8.0 - 1.8 + 0.1)
    assert limits(2.0, 1.0).colocated_s < limits(2.0, 1.0).layerwise_s < limits(2.0, 1.0).full_s


def test_chunks_let_both_hide_more() -> None:
    assert limits(2.0, 1.0, chunks=2).full_s == pytest.approx(2.0 + 0.5 + 0.1)
    assert limits(2.0, 1.0, chunks=2).layerwise_s == pytest.approx(2.0 + 0.05 + 0.1)


def test_prompts_are_as_long_as_asked_differ_and_repeat_with_their_seed(tmp_path: Path) -> None:
    letters = sorted(string.printable)
    tokenizer = Tokenizer(WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token=" "))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    first, again = Prompts(tmp_path, seed=1), Prompts(tmp_path, seed=1)
    made = [first.make(tokens) for tokens in (1, 16, 16, 500)]
    assert [len(prompt) for prompt in made] == [1, 16, 16, 500]
    assert made == [again.make(tokens) for tokens in (1, 16, 16, 500)]
    assert made[1] != made[2]
