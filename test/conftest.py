"""Skips what this machine cannot run, each with its reason. Markers are explained in pyproject.toml."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from smartgen.launch import checks


def _no_gpu() -> str | None:
    return None if Path("/proc/driver/nvidia/version").exists() else "no NVIDIA driver"


def _no_namespaces() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None if shutil.which("ip") and shutil.which("tc") else "iproute2 is not installed"


def _no_sglang() -> str | None:
    return None if importlib.util.find_spec("sglang") else "SGLang is not installed"


def _no_mooncake() -> str | None:
    try:
        checks.require_mooncake_libraries()
    except checks.CheckFailed as error:
        return str(error)
    return None if importlib.util.find_spec("mooncake") else "Mooncake is not installed"


_MISSING = {"gpu": _no_gpu, "netns": _no_namespaces, "sglang": _no_sglang, "mooncake": _no_mooncake}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {name: find() for name, find in _MISSING.items()}
    for item in items:
        for name, reason in reasons.items():
            if reason is not None and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
