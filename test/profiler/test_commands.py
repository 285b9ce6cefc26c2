"""`smartgen profile` and `smartgen bench accuracy` as a user runs them, on the tiny model."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from smartgen import profile as profiles
from smartgen.cli import app
from smartgen.profile import Profile
from smartgen.profiler import build
from smartgen.profiler.options import Options
from smartgen.profiler.prompts import Prompt
from smartgen_lab.bench import app as bench
from typer.testing import CliRunner, Result

METHODS = ("window-32-mean/uniform/0.2", "window-16-max/profile/0.1+mean/all/0.1")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The commands change them for a process of their own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {
            "kind": "chat",
            "messages": [{"role": "user", "content": "Which town? " * 8}],
            "answer": "x",
        },
        {"kind": "raw", "prompt": "The bell rang and the snow began to fall. " * 5},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def profile_file(profile: Profile, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(profiles.dump(profile))
    return path


def refused(result: Result) -> str:
    """The one sentence of a command that failed; bars of loading weights are before it."""
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert result.stderr.count("smartgen: ") == 1
    return result.stderr.splitlines()[-1]


def test_bench_accuracy_prints_and_writes(folder: Path, prompts: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / "out" / name for name in ("rows.jsonl", "table.md", "plot.png")}
    arguments = [
        *("accuracy", "--model", str(folder), "--prompts", str(prompts)),
        *("--json", str(files["rows.jsonl"])),
        *("--markdown", str(files["table.md"]), "--plot", str(files["plot.png"])),
        *(part for method in METHODS for part in ("--method", method)),
    ]
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "2 prompts, bfloat16; floor of bf16 against float32: KL 0." in result.stdout
    assert all(f"│ {method} " in result.stdout for method in METHODS)  # whole, on any terminal
    header, *rows = map(json.loads, files["rows.jsonl"].read_text().splitlines())
    assert header["settings"]["methods"] == [*METHODS]
    assert [row["method"] for row in rows] == ["full", *METHODS] * 2
    assert all("fetched" in row for row in rows[2::3])
    for method in METHODS:
        assert f"| {method} |" in files["table.md"].read_text()
    assert files["plot.png"].read_bytes().startswith(b"\x89PNG")


def test_bench_accuracy_in_float32_with_a_profile(
    folder: Path, prompts: Path, profile: Profile, tmp_path: Path
) -> None:
    identity = msgspec.structs.replace(profile.identity, dtype="bfloat16")
    path = tmp_path / "profile.json"
    path.write_text(profiles.dump(msgspec.structs.replace(profile, identity=identity)))
    arguments = [
        *("accuracy", "--model", str(folder), "--prompts", str(prompts), "--dtype", "float32"),
        *("--profile", str(path), "--method", "window-16-max/profile/0.2"),
    ]
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "2 prompts, float32" in result.stdout
    assert "floor" not in result.stdout


def test_bench_accuracy_refuses_in_one_sentence(
    folder: Path, prompts: Path, profile_file: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"prompt": "fine"}\n{"prompt"\n')
    model = ("--model", str(folder))
    for arguments, sentence in (
        (("--model", str(tmp_path / "none")), "none cannot be loaded as a causal language model"),
        ((*model, "--prompts", str(tmp_path / "none")), "none cannot be read as UTF-8 text"),
        ((*model, "--prompts", str(torn)), "torn.jsonl:2: not JSON"),
        ((*model, "--prompts", str(prompts), "--method", "best"), "there is no method 'best'"),
        ((*model, "--profile", str(tmp_path / "none")), "none: cannot be read"),
        ((*model, "--profile", str(profile_file)), "was made for dtype float32"),
        ((*model, "--prompts", str(prompts), "--json", str(torn)), "holds no results"),
    ):
        result = CliRunner().invoke(bench, ["accuracy", *arguments], catch_exceptions=False)
        assert sentence in refused(result)
    result = CliRunner().invoke(bench, ["accuracy", "--dtype", "int8"])
    assert result.exit_code == 2
    assert "bfloat16 or float32 is expected" in result.stderr


def test_outputs_that_cannot_be_written(folder: Path, prompts: Path, tmp_path: Path) -> None:
    for option in ("--json", "--markdown", "--plot"):
        (tmp_path / "file").touch()
        arguments = [
            *("accuracy", "--model", str(folder), "--prompts", str(prompts)),
            *("--method", METHODS[0], option, str(tmp_path / "file" / "out")),
        ]
        result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
        assert "file/out cannot be" in refused(result)


@pytest.fixture
def small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_prompt: Callable[..., Prompt]
) -> Path:
    """Short held-out prompts in the place of the made ones; the folder of interrupted work."""
    from smartgen.cli import profile as command

    monkeypatch.setattr(build, "make_prompts", lambda *_: [make_prompt(200, kind="held")])
    monkeypatch.setattr(
        command,
        "Options",
        lambda **given: Options(
            **given, answer_tokens=4, signals=("window-16-max",), fractions=(0.1, 0.3)
        ),
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "work"))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_profile_build_then_show(folder: Path, prompts: Path, small: Path, tmp_path: Path) -> None:
    output, picture = tmp_path / "deep" / "profile.json", tmp_path / "map.png"
    arguments = [
        *("profile", "build", "--model", str(folder), "--output", str(output)),
        *("--prompts", str(prompts), "--page-size", "8", "--block-size", "16", "--seed", "3"),
    ]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == str(output)
    assert [*small.iterdir()] == []
    profile = profiles.load(output)
    assert (profile.identity.page_size, profile.identity.block_size) == (8, 16)
    assert profile.calibration is not None
    assert profile.calibration.seed == 3
    assert profile.calibration.kinds == {"raw": 1}  # the other one is answered wrong

    result = CliRunner().invoke(
        app, ["profile", "show", str(output), "--png", str(picture)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "tiny, bfloat16, pages of 8 tokens, blocks of 16" in result.stdout
    assert "held-out prompts, static" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_profile_build_says_that_it_goes_on(
    folder: Path, prompts: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    arguments = [
        *("profile", "build", "--model", str(folder), "--output", str(tmp_path / "profile.json")),
        *("--prompts", str(prompts)),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(build.Measure, "sensitivity", interrupt)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130
    (work,) = small.iterdir()
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert f"going on with the interrupted run in {work}" in result.stderr
    assert not work.exists()


@pytest.mark.usefixtures("small")
def test_profile_build_refuses_in_one_sentence(folder: Path, prompts: Path, tmp_path: Path) -> None:
    given = ("--model", str(folder), "--prompts", str(prompts))
    for arguments, sentence in (
        (("--model", str(tmp_path / "none")), "cannot be loaded as a causal language model"),
        (("--model", str(folder), "--prompts", str(tmp_path / "no")), "cannot be read as UTF-8"),
        ((*given, "--block-size", "24"), "block size 24 is no multiple of page size 16"),
        ((*given, "--page-size", "4"), "digest means-8 does not divide blocks of 4 tokens"),
    ):
        result = CliRunner().invoke(app, ["profile", "build", *arguments], catch_exceptions=False)
        assert sentence in refused(result)


def test_profile_show_refuses_in_one_sentence(profile_file: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.json"
    edited.write_text(profile_file.read_text().replace("0.5", "0.4"))
    for arguments, sentence in (
        ((str(tmp_path / "none.json"),), "none.json: cannot be read"),
        ((str(edited),), "edited.json: is damaged or was edited"),
        ((str(profile_file), "--png", str(tmp_path / "no" / "map.png")), "cannot be written"),
    ):
        result = CliRunner().invoke(app, ["profile", "show", *arguments], catch_exceptions=False)
        assert sentence in refused(result)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"COLUMNS": "300"},
    )


@pytest.mark.slow
def test_a_real_process_fails_with_one_line_and_status_one(tmp_path: Path) -> None:
    done = run("-m", "smartgen.cli", "profile", "show", str(tmp_path / "none.json"))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("smartgen: ")


def test_the_command_loads_neither_torch_nor_transformers() -> None:
    heavy = "{'torch', 'transformers', 'matplotlib', 'tokenizers', 'openai'}"
    done = run(
        "-c", f"import sys, smartgen.cli, smartgen_lab.bench; print({heavy} & set(sys.modules))"
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_the_bench_group_is_among_the_commands() -> None:
    help_text = CliRunner().invoke(bench, ["--help"]).stdout
    assert "accuracy" in help_text
