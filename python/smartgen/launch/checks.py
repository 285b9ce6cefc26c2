"""Checks before anything heavy is started. Each raises CheckFailed: one sentence with the remedy.

Nothing here imports SGLang, Mooncake or torch; all of it together takes well under a second.
"""

import ctypes
import importlib.metadata
import json
import re
from collections.abc import Iterable
from pathlib import Path

import psutil

from smartgen.config import CPU_KV_POOL_BYTES
from smartgen.launch.errors import CheckFailed
from smartgen.transport import SYSTEM_LIBRARIES

# What one server's three processes take beside weights and KV cache, with the default model on a
# CPU, and a little more.
_PROCESS_BYTES = 11 << 28
_KV_OPTIONS = ("--max-total-tokens", "--mem-fraction-static")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)\s*==\s*([^\s;]+)")


def require_model(folder: Path) -> None:
    """The folder holds a Hugging Face model: configuration, tokenizer and weights."""
    hint = "run `smartgen model fetch` for the default model"
    if not folder.is_dir():
        raise CheckFailed(f"--model {folder} is not a folder; {hint}, or give a local model folder")
    config = folder / "config.json"
    try:
        json.loads(config.read_text())
    except (OSError, ValueError) as error:
        raise CheckFailed(
            f"{config} cannot be read ({_reason(error)}); --model must be a Hugging Face model "
            f"folder; {hint}"
        ) from error
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise CheckFailed(f"{folder} holds no weights (*.safetensors, *.bin); {hint}")
    if not any(folder.glob("tokenizer*")):
        raise CheckFailed(f"{folder} holds no tokenizer (tokenizer*.json); {hint}")


def require_memory(model: Path, extra: Iterable[str], servers: int = 2) -> None:
    """The machine has room for `servers` servers of this model."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    kv_given = any(option.split("=")[0] in _KV_OPTIONS for option in extra)
    each = weights + _PROCESS_BYTES + (0 if kv_given or has_gpu() else CPU_KV_POOL_BYTES)
    available = psutil.virtual_memory().available
    if servers * each > available:
        raise CheckFailed(
            f"{servers} servers need about {_gib(servers * each)} GiB of memory and "
            f"{_gib(available)} GiB are available; free some, take a smaller model, or shrink "
            "the KV cache with `-- --max-total-tokens N`"
        )


def require_mooncake_libraries() -> None:
    """The system libraries that Mooncake's engine links against can be loaded."""
    missing = [name for name in SYSTEM_LIBRARIES if not _loads(name)]
    if missing:
        packages = " ".join(SYSTEM_LIBRARIES[name] for name in missing)
        raise CheckFailed(
            f"Mooncake needs {' and '.join(missing)}, missing on this machine; install: "
            f"apt-get install {packages}"
        )


def require_versions() -> None:
    """SGLang, its router and Mooncake are installed in the versions this project is pinned to."""
    for name, wanted, found in pinned_versions():
        if found is None:
            raise CheckFailed(f"{name} {wanted} is not installed; run scripts/install")
        if found != wanted:
            raise CheckFailed(
                f"{name} {found} is installed but SmartGen works with {wanted}; run "
                f"scripts/install, or pip install '{name}=={wanted}'"
            )


def pinned_versions() -> list[tuple[str, str, str | None]]:
    """(distribution, pinned, installed or None) for SGLang, the router and Mooncake."""
    rows = []
    mooncakes: list[tuple[str, str, str | None]] = []
    for requirement in importlib.metadata.requires("smartgen") or ():
        match = _PINNED.match(requirement)
        if match is None:
            continue
        name, wanted = match.groups()
        row = (name, wanted, _installed(name))
        if name.startswith("mooncake"):
            mooncakes.append(row)
        elif name.startswith("sglang"):
            rows.append(row)
    # Two builds of one engine, of which one is installed.
    present = [row for row in mooncakes if row[2] is not None]
    return rows + (present or mooncakes[:1])


def has_gpu() -> bool:
    """Whether an NVIDIA driver is loaded."""
    return Path("/proc/driver/nvidia/version").exists()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"not JSON: {error}"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
