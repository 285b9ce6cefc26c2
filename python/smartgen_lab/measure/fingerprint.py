"""Which machine and which software made a result."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = (
    *("smartgen", "smartgen-kernel", "sglang", "sglang-router", "torch", "transformers"),
    *("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine-cuda13"),
)
_GIT_TIMEOUT_S = 30.0


def fingerprint() -> dict[str, Any]:
    """Plain JSON values. `load` is the machine's at this moment: above 0.5 others disturb."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "versions": _versions(),
        "commit": _commit(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """`-dirty` behind it when tracked files were changed; None outside a checkout or without git."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
