"""Processor time of a server: the guard and all processes below it."""

import contextlib
import time

import psutil


def cpu_seconds(pid: int) -> float:
    """User and system time so far of `pid` and its descendants that still run."""
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def cpu_shares(pids: dict[str, int], interval_s: float) -> dict[str, float]:
    """Share of one core that each used during the next `interval_s`, kernel work for it included.

    Network work that the kernel does in interrupts is charged to whoever runs then.
    """
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(interval_s)
    elapsed = time.monotonic() - began
    return {name: (cpu_seconds(pid) - before[name]) / elapsed for name, pid in pids.items()}
