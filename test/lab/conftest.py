"""What the lab's tests share: who may run them, and a look at the machine's namespaces."""

import os
import shutil
from collections.abc import Callable

import pytest


@pytest.fixture
def lab_possible() -> None:
    """Skips where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing (apt-get install iproute2)")


@pytest.fixture
def lab_namespaces() -> Callable[[], set[str]]:
    """Names of all lab namespaces on this machine, other runs' included."""

    def names() -> set[str]:
        folder = "/run/netns"
        found = os.listdir(folder) if os.path.isdir(folder) else []
        return {name for name in found if name.startswith("smartgenlab-")}

    return names
