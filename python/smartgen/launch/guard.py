"""Runs one command and sees to it that nothing of it survives.

Started as a script (`python -I guard.py GRACE_S -- COMMAND...`) between a caller and a server, so
it must stay free of imports from this project. Its standard input is a pipe whose other end only
the caller holds. The command and all its descendants are stopped when that pipe closes (the
caller stopped it, or died in any way, kill -9 included), when the guard gets SIGTERM or SIGINT,
or when the command itself ends. Stopping is SIGTERM to the command's group, GRACE_S seconds of
patience, then SIGKILL to whatever is left, in whichever session it hides: the guard is the
subreaper of everything it started. Its exit status is the command's.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    grace_s, command = float(arguments[0]), arguments[2:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = _wake_on_signals()
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_in_child
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    stopping = False
    while child.poll() is None and not stopping:
        ready, _, _ = select.select([sys.stdin.fileno(), wake], [], [], 1.0)
        stopping = sys.stdin.fileno() in ready
        if wake in ready:
            stopping = _stop_asked(wake) or stopping
            _reap_orphans(child)
    if child.poll() is None:
        _signal_group(child.pid, signal.SIGTERM)
    _end_all(child, time.monotonic() + (grace_s if stopping else 0.5))
    status = child.wait()
    return 128 - status if status < 0 else status


def _prctl(option: int, value: int) -> None:
    # No error check: where the kernel lacks the option the rest still works.
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _in_child() -> None:
    # The last resort for a guard that is itself killed with -9.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wake_on_signals() -> int:
    """A pipe that receives the number of each signal, so that select() sees them."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, _noted)
    return read_end


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up pipe carries the news."""


def _stop_asked(wake: int) -> bool:
    try:
        numbers = os.read(wake, 256)
    except BlockingIOError:
        return False
    return any(number in numbers for number in _STOP_SIGNALS)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _end_all(child: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Wait for every descendant until `deadline`, then kill those left."""
    while True:
        child.poll()
        _reap_orphans(child)
        left = _descendants(os.getpid())
        if not left:
            return
        if time.monotonic() >= deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _reap_orphans(child: "subprocess.Popen[bytes]") -> None:
    for pid in _children().get(os.getpid(), ()):
        if pid != child.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _descendants(pid: int) -> list[int]:
    children = _children()
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _children() -> dict[int, list[int]]:
    """Parent to children, for every process that can be seen."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    # The name stands in parentheses and may itself hold spaces and parentheses.
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    return children


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
