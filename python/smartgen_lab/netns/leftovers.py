"""Names of the lab's namespaces, and what to do with those whose maker is gone.

A name is `smartgenlab-PID-STARTED-HOST`: PID and the start time of the process that made it (in
kernel ticks, so that a reused PID is not taken for it). Anything else is none of our business.
"""

import contextlib
import os
import re
import signal
from dataclasses import dataclass

from smartgen_lab.netns.errors import LabError
from smartgen_lab.netns.tools import NETNS_FOLDER, run

_PREFIX = "smartgenlab"
_NAME = re.compile(rf"^{_PREFIX}-(\d+)-(\d+)-([a-z0-9.]+)$")


@dataclass(frozen=True)
class Owner:
    """One process, for as long as the machine runs."""

    pid: int
    started: int

    def namespace(self, host: str) -> str:
        return f"{_PREFIX}-{self.pid}-{self.started}-{host}"

    @property
    def lives(self) -> bool:
        return _started(self.pid) == self.started


def this_process() -> Owner:
    started = _started(os.getpid())
    assert started is not None
    return Owner(os.getpid(), started)


def namespaces_of(owner: Owner) -> list[str]:
    return [name for name, found in _all() if found == owner]


def remove_leftovers() -> list[str]:
    """Remove namespaces whose maker no longer runs; returns their names."""
    gone = [name for name, owner in _all() if not owner.lives]
    for name in gone:
        remove(name)
    return gone


def remove(namespace: str) -> None:
    """Kill what still runs inside and delete the namespace; its links go with it."""
    with contextlib.suppress(LabError):
        for pid in map(int, run("ip", "netns", "pids", namespace).split()):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    try:
        run("ip", "netns", "delete", namespace)
    except LabError:
        if os.path.exists(f"{NETNS_FOLDER}/{namespace}"):
            raise


def _all() -> list[tuple[str, Owner]]:
    try:
        names = sorted(os.listdir(NETNS_FOLDER))
    except FileNotFoundError:
        return []
    matches = [(name, _NAME.match(name)) for name in names]
    return [(name, Owner(int(m[1]), int(m[2]))) for name, m in matches if m is not None]


def _started(pid: int) -> int | None:
    """Field 22 of the process's status line; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name stands in parentheses and may itself hold spaces and parentheses.
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
