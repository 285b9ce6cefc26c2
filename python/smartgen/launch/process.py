"""One supervised process: started through the guard, logging to a file, stopped without trace.

Owned by one thread. The process ends with its owner, however the owner ends (see `guard.py`).
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import requests

from smartgen.launch import guard
from smartgen.launch.errors import ProcessDied, StartTimeout

TAIL_LINES = 25
_GRACE_S = 8.0
_POLL_S = 0.25


class Process:
    """A running command. `argv` as for subprocess; `environment` is complete, not a difference."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        grace_s: float = _GRACE_S,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self._grace_s = grace_s
        self._started = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        guarded = [sys.executable, "-I", guard.__file__, str(grace_s), "--", *self.argv]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                # Ctrl-C in a terminal must reach the supervisor alone.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The guard's process id; everything that was started lives below it."""
        return self._guard.pid

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started

    def exit_code(self) -> int | None:
        """None while it runs; 128 + n when a signal n ended it."""
        return self._guard.poll()

    def require_alive(self) -> None:
        """Raises ProcessDied, with the log's last lines, once the command has ended."""
        code = self.exit_code()
        if code is not None:
            raise ProcessDied(self.name, code, self.log, self.tail())

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log, at most 64 KiB of it."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 65536))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def ask_to_stop(self) -> None:
        """Begin stopping; returns at once. `stop` waits for the end."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()

    def stop(self) -> None:
        """Returns when the command and its descendants are gone; safe to call again."""
        self.ask_to_stop()
        try:
            self._guard.wait(timeout=self._grace_s + 10)
        except subprocess.TimeoutExpired:
            # The guard hangs only if the kernel cannot end a process; its children still get
            # SIGKILL through the parent-death signal.
            self._guard.kill()
            self._guard.wait()


def wait_until_healthy(
    targets: Mapping[Process, str],
    *,
    timeout_s: float,
    on_healthy: Callable[[Process], None] = lambda process: None,
    also_alive: Sequence[Process] = (),
) -> None:
    """Wait until each target's URL answers 200.

    Raises ProcessDied as soon as one of them (or of `also_alive`) ends, StartTimeout after
    `timeout_s`.
    """
    waiting = dict(targets)
    deadline = time.monotonic() + timeout_s
    while waiting:
        for process in (*targets, *also_alive):
            process.require_alive()
        for process, url in list(waiting.items()):
            if answers(url):
                del waiting[process]
                on_healthy(process)
        if waiting and time.monotonic() > deadline:
            late = next(iter(waiting))
            raise StartTimeout(late.name, timeout_s, late.log, late.tail())
        if waiting:
            time.sleep(_POLL_S)


def answers(url: str, timeout_s: float = 3.0) -> bool:
    """Whether `url` answers 200 within `timeout_s`. Proxies from the environment are not used."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.get(url, timeout=timeout_s).status_code == 200
        except requests.RequestException:
            return False
