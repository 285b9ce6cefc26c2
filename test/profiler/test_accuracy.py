"""The accuracy benchmark's file, table and plot, and its runs on the tiny model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from smartgen import profile as profiles
from smartgen.profile import Profile, ProfileError
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.identity import identity_of
from smartgen.profiler.judge import Judge
from smartgen_lab.accuracy import plot, table
from smartgen_lab.accuracy.plan import BASELINE, standard_methods
from smartgen_lab.accuracy.results import Results
from smartgen_lab.accuracy.run import Report, Wanted, run

SETTINGS = {"model": "tiny", "methods": ["a", "b"], "fractions": (0.1, 0.2)}


def rows_of(prompt: str) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "method": method, "kl": 0.1} for method in ("full", "a", "b")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    results = Results(tmp_path / "deep" / "results.jsonl", SETTINGS)
    assert not results.resumed
    for prompt in ("one", "two"):
        results.add(rows_of(prompt))
    results.close()
    return tmp_path / "deep" / "results.jsonl"


def done(path: Path | None, settings: dict[str, Any] = SETTINGS) -> tuple[bool, set[str]]:
    results = Results(path, settings)
    results.close()
    return results.resumed, results.done()


def test_a_header_with_the_machine_then_rows(path: Path) -> None:
    header, *rows = map(json.loads, path.read_text().splitlines())
    assert header["kind"] == "header"
    assert header["benchmark"] == "accuracy"
    assert header["settings"] == json.loads(json.dumps(SETTINGS))
    assert {"cpu", "commit", "versions"} <= header.keys()
    assert [row["prompt"] for row in rows] == ["one"] * 3 + ["two"] * 3
    assert [row.get("last", False) for row in rows] == [False, False, True] * 2


def test_the_same_settings_go_on(path: Path) -> None:
    before = path.read_text()
    assert done(path) == (True, {"one", "two"})
    assert path.read_text() == before


def test_a_broken_prompt_is_judged_again(path: Path) -> None:
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    one = sum(map(len, lines[:4]))
    for size in range(len(lines[0]), len(whole) - 1, 7):
        path.write_bytes(whole[:size])
        assert done(path) == (True, {"one"} if size >= one - 1 else set())
        assert path.read_bytes() == whole[: one if size >= one - 1 else len(lines[0])]


def test_another_setting_starts_anew(path: Path) -> None:
    assert done(path, SETTINGS | {"methods": ["a"]}) == (False, set())
    assert done(path) == (False, set())


@pytest.mark.parametrize("content", [b'{"prompt": "hello"}\n', b"[1]\n", b"\x89PNG\xff", b"text"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises(ProfilerError, match="precious holds no results of this benchmark"):
        Results(path, SETTINGS)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProfilerError, match=r"file/results\.jsonl cannot be written"):
        Results(tmp_path / "file" / "results.jsonl", SETTINGS)
    with pytest.raises(ProfilerError, match="cannot be read"):
        Results(tmp_path, SETTINGS)


def test_without_a_file_rows_are_in_memory_only() -> None:
    results = Results(None, SETTINGS)
    results.add(rows_of("one"))
    results.close()
    assert len(results.rows) == 3
    assert results.done() == {"one"}


def row(prompt: str, method: str, kl: float, **more: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "method": method,
        "kl": kl,
        "agreement": 0.5,
        "retrieved": None,
        "base": 0.2,
    } | more


# Prompts differ a hundredfold, methods by two: only a paired ratio is sharp.
ROWS = [
    row("p", "full", 0.0, nll=1.0, base=1.0),
    row("p", f"{BASELINE}/uniform/0.2", 0.01, retrieved=True, nll=1.1),
    row("p", "oracle/profile/0.2", 0.005, retrieved=True, nll=1.0),
    row(
        "p", "oracle/profile/0.2+quest/all/0.1", 0.002, digest=0.1, fetched_first=0.02, fetched=0.1
    ),
    row("p", "oracle/profile/0.05", 0.05),
    row("q", "full", 0.0, nll=2.0, base=1.0),
    row("q", f"{BASELINE}/uniform/0.2", 1.0, retrieved=False, nll=2.3),
    row("q", "oracle/profile/0.2", 0.5, nll=2.0),
    row("q", "oracle/profile/0.2+quest/all/0.1", 0.2, digest=0.3, fetched_first=0.04, fetched=0.3),
]


def test_lines_by_method_with_paired_ratios() -> None:
    baseline, half, fetching, least = table.lines(ROWS)
    assert baseline.method == f"{BASELINE}/uniform/0.2"
    assert baseline.kl.value == pytest.approx(0.505)
    assert (baseline.kl.low, baseline.kl.high) == pytest.approx((0.01, 1.0))
    for line, expected in ((baseline, 1.0), (half, 0.5), (fetching, 0.2)):
        assert line.ratio is not None
        assert (line.ratio.value, line.ratio.low, line.ratio.high) == pytest.approx((expected,) * 3)
    assert least.ratio is None  # no baseline of so few bytes
    assert (baseline.retrieval, half.retrieval, fetching.retrieval) == (0.5, 1.0, None)
    assert baseline.perplexity == pytest.approx(2.718281828 ** ((0.1 + 0.3) / 2))
    assert half.perplexity == pytest.approx(1.0)
    assert fetching.perplexity is None
    assert (fetching.base, fetching.digest) == pytest.approx((0.2, 0.2))
    assert (fetching.fetched_first, fetching.fetched) == pytest.approx((0.03, 0.2))
    assert (half.digest, half.fetched) == (0, 0)


def test_a_ratio_is_over_the_prompts_that_both_judged() -> None:
    partly = [one for one in ROWS if one["prompt"] == "p" or one["method"] != "oracle/profile/0.2"]
    half = table.lines(partly)[1]
    assert half.ratio is not None
    assert half.ratio.value == pytest.approx(0.5)


def test_markdown_has_a_row_per_method(tmp_path: Path) -> None:
    found = table.lines(ROWS)
    table.write_markdown(found, "two prompts", tmp_path / "table.md")
    title, empty, head, rule, *rows = (tmp_path / "table.md").read_text().splitlines()
    assert (title, empty) == ("two prompts", "")
    assert {line.count("|") for line in (head, rule, *rows)} == {11}
    assert rows[1] == (
        "| oracle/profile/0.2 | 0.2525 (0.0050-0.5000) | 0.50 (0.50-0.50) | 50.0% | 100% | 1.000 "
        "| 20.0% | 0.0% | 0.00% | 0.00% |"
    )
    assert rows[3].startswith(
        "| oracle/profile/0.05 | 0.0500 (0.0500-0.0500) | - | 50.0% | - | - |"
    )
    with pytest.raises(ProfilerError, match=r"missing/table\.md cannot be written"):
        table.write_markdown(found, "", tmp_path / "missing" / "table.md")


def test_the_table_on_the_screen_has_the_same_rows() -> None:
    assert table.shown(table.lines(ROWS), "title").row_count == 4


@pytest.mark.parametrize("floor", [None, 0.001])
def test_the_plot_is_a_png(tmp_path: Path, floor: float | None) -> None:
    path = tmp_path / "plot.svg"
    plot.quality_over_bytes(table.lines(ROWS), floor, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_methods_that_lose_nothing(tmp_path: Path) -> None:
    lossless = [one | {"kl": 0.0} for one in ROWS]
    plot.quality_over_bytes(table.lines(lossless), None, tmp_path / "plot.png")
    with pytest.raises(ProfilerError, match=r"missing/plot\.png cannot be written"):
        plot.quality_over_bytes(table.lines(ROWS), None, tmp_path / "missing" / "plot.png")


def test_standard_methods_are_told_apart_by_name(profile: Profile, folder: Path) -> None:
    for one in (profile, profiles.generic(profile.identity)):
        names = [method.name for method in standard_methods(one)]
        assert len(names) == len(set(names))
        assert {f"{BASELINE}/uniform/{f:g}" for f in (0.1, 0.2, 0.3)} <= {*names}
        assert any(name.startswith(f"{one.signal.selector}/profile/") for name in names)


class Quiet:
    """Counts what it is told; raises as Ctrl-C does after so many pieces."""

    def __init__(self, pieces: int | None = None) -> None:
        self.pieces = 0
        self._most = pieces

    def stage(self, name: str, pieces: int) -> None:
        pass

    def done(self) -> None:
        self.pieces += 1
        if self.pieces == self._most:
            raise KeyboardInterrupt


METHODS = (
    f"{BASELINE}/uniform/0.2",
    "oracle/profile/0.2",
    "window-16-max/profile/0.1+mean/all/0.1",
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [
        {
            "kind": "chat",
            "messages": [{"role": "user", "content": "Which town? " * 8}],
            "answer": "x",
        },
        {"kind": "raw", "prompt": "The bell rang and the snow began to fall. " * 5},
        {"kind": "raw", "prompt": "def mayor(town):\n    return town.mayor\n" * 5},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def wanted(folder: Path, prompts: Path, tmp_path: Path) -> Wanted:
    return Wanted(
        model=folder,
        profile=None,
        prompts=prompts,
        output=tmp_path / "results.jsonl",
        page_size=4,
        answer_tokens=5,
        only=METHODS,
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the prompts that were really judged."""
    names: list[str] = []
    real = Judge.rows

    def rows(self: Judge, prompt: Any) -> Any:
        names.append(prompt.name)
        return real(self, prompt)

    monkeypatch.setattr(Judge, "rows", rows)
    return names


def test_a_run_and_the_same_run_again(wanted: Wanted, judged: list[str]) -> None:
    first = run(wanted, Quiet())
    assert (first.prompts, first.resumed) == (3, False)
    assert first.floor is not None
    assert 0 < first.floor < 1
    assert [one["method"] for one in first.rows] == ["full", *METHODS] * 3
    assert len(judged) == 3
    again = run(wanted, Quiet())
    assert again == replace(first, resumed=True)
    assert len(judged) == 3
    assert isinstance(again, Report)


def test_an_interrupted_run_goes_on(wanted: Wanted, judged: list[str]) -> None:
    whole = run(replace(wanted, output=None), Quiet())
    judged.clear()
    with pytest.raises(KeyboardInterrupt):
        run(wanted, Quiet(2))
    assert wanted.output is not None
    with wanted.output.open("a") as file:
        file.write('{"prompt": "prompts.jsonl:3", "method": "fu')
    assert run(wanted, Quiet()) == replace(whole, resumed=True)
    assert judged == [f"prompts.jsonl:{number}" for number in (1, 2, 3)]


def test_other_settings_are_another_run(
    wanted: Wanted, judged: list[str], prompts: Path, profile: Profile, tmp_path: Path
) -> None:
    """Each of these changes what the rows would say."""
    run(wanted, Quiet())
    shorter = tmp_path / "prompts.jsonl"
    shorter.write_text(prompts.read_text().replace('"answer": "x"', '"answer": "y"'))
    for changed in (
        {"only": METHODS[:2]},
        {"dtype": "float32"},
        {"answer_tokens": 4},
        {"prompts": shorter},
    ):
        judged.clear()
        assert not run(replace(wanted, **changed), Quiet()).resumed
        assert len(judged) == 3


@pytest.fixture
def measured(profile: Profile, tmp_path: Path) -> Callable[..., Path]:
    """The profile as a file of the type that servers have; keywords replace fields of its identity."""

    def write(**changed: Any) -> Path:
        identity = msgspec.structs.replace(profile.identity, **({"dtype": "bfloat16"} | changed))
        path = tmp_path / "profile.json"
        path.write_text(profiles.dump(msgspec.structs.replace(profile, identity=identity)))
        return path

    return write


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_profile_brings_its_own_layout(
    wanted: Wanted, measured: Callable[..., Path], dtype: str
) -> None:
    report = run(
        replace(wanted, profile=measured(), page_size=16, dtype=dtype, only=METHODS[:2]), Quiet()
    )
    assert (report.floor is None) == (dtype == "float32")
    assert wanted.output is not None
    settings = json.loads(wanted.output.read_text().splitlines()[0])["settings"]
    assert (settings["page_size"], settings["block_size"]) == (4, 8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_profile_of_another_model_is_refused(
    wanted: Wanted, measured: Callable[..., Path], dtype: str
) -> None:
    profile = measured(config_sha256="0" * 64)
    with pytest.raises(ProfileError, match=r"profile\.json: was made for config_sha256 000"):
        run(replace(wanted, profile=profile, dtype=dtype), Quiet())


def test_a_profile_whose_selector_nobody_has(
    wanted: Wanted, profile: Profile, measured: Callable[..., Path]
) -> None:
    path = measured()
    loaded = profiles.load(path)
    signal = msgspec.structs.replace(loaded.signal, selector="from-a-plugin")
    path.write_text(profiles.dump(msgspec.structs.replace(loaded, signal=signal)))
    with pytest.raises(ProfilerError, match="unknown selector 'from-a-plugin'"):
        run(replace(wanted, profile=path, only=("from-a-plugin/profile/0.1",)), Quiet())


def test_made_questions_that_full_kv_answers_wrong_cost_nothing(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch, make_prompt: Callable[..., Any], tmp_path: Path
) -> None:
    made = [make_prompt(40, answer="no such text")]
    monkeypatch.setattr("smartgen_lab.accuracy.run.make_prompts", lambda *_: made)
    report = run(replace(wanted, prompts=None), Quiet())
    assert [(one["method"], one["retrieved"]) for one in report.rows] == [("full", False)]
    assert run(replace(wanted, prompts=None), Quiet()).resumed
    found = table.lines(report.rows)
    assert found == []
    assert table.shown(found, "nothing").row_count == 0
    plot.quality_over_bytes(found, None, tmp_path / "plot.png")


def test_an_unknown_method_is_named(wanted: Wanted) -> None:
    with pytest.raises(ProfilerError, match=r"no method 'best'; known are window-32-mean/uniform/"):
        run(replace(wanted, only=("best",)), Quiet())


def test_a_prompt_that_does_not_fit_is_refused_before_any_work(
    wanted: Wanted, tmp_path: Path, judged: list[str]
) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "a" * 600, "name": "long"}))
    with pytest.raises(ProfilerError, match="prompt long has 600 tokens"):
        run(replace(wanted, prompts=path), Quiet())
    assert not judged


def test_the_shipped_profile_is_found_whatever_is_computed_in(
    wanted: Wanted, folder: Path, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(profiles, "shipped", asked.append)
    for dtype in ("bfloat16", "float32"):
        run(replace(wanted, output=None, dtype=dtype, only=METHODS[:1]), Quiet())
    served = msgspec.structs.replace(identity_of(folder, model, 4, 4), dtype="bfloat16")
    assert asked == [served, served]
