"""Supervision with ordinary Python processes in place of servers."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from smartgen.launch import Process, ProcessDied, StartTimeout, wait_until_healthy

SLEEP = "import time; time.sleep(60)"
# Ignores SIGTERM, as does its child, which also leaves the session.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, "-c",
     "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"],
    start_new_session=True, stdout=subprocess.PIPE)
child.stdout.read(2)
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(code: str, *, name: str = "fake", grace_s: float = 0.3) -> Process:
        process = Process(
            name,
            [sys.executable, "-c", code],
            log=tmp_path / f"{name}.log",
            environment=os.environ,
            grace_s=grace_s,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.stop()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def pids_in(log: Path) -> list[int]:
    assert eventually(lambda: log.exists() and "pids" in log.read_text())
    line = next(line for line in log.read_text().splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


def test_stop_ends_a_stubborn_command_and_its_child_in_another_session(start):
    process = start(STUBBORN)
    pids = pids_in(process.log)
    process.stop()
    assert not any(alive(pid) for pid in pids)
    process.stop()  # again: nothing to do


def test_a_command_that_ends_takes_its_children_along(start):
    process = start(
        "import subprocess, sys; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        "print('pids', p.pid, flush=True); sys.exit(7)"
    )
    (child,) = pids_in(process.log)
    assert eventually(lambda: process.exit_code() == 7)
    assert not alive(child)


def test_exit_by_signal_is_told_and_the_log_shown(start):
    process = start(
        "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert eventually(lambda: process.exit_code() is not None)
    with pytest.raises(ProcessDied, match=r"fake ended unexpectedly \(signal 9\)") as caught:
        process.require_alive()
    assert caught.value.tail == "last words"


def test_a_command_that_does_not_exist_is_an_early_end(tmp_path):
    process = Process("fake", ["/no/such/program"], log=tmp_path / "log", environment=os.environ)
    assert eventually(lambda: process.exit_code() == 127)
    assert "No such file" in process.tail()
    process.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_survives_a_supervisor_that_is_killed(tmp_path, number):
    log = tmp_path / "log"
    supervisor = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, pathlib, sys, time\n"
            f"from smartgen.launch import Process\n"
            f"Process('fake', [sys.executable, '-c', {STUBBORN!r}], log=pathlib.Path({str(log)!r}),"
            f" environment=os.environ, grace_s=0.3)\n"
            f"time.sleep(60)",
        ]
    )
    pids = pids_in(log)
    supervisor.send_signal(number)
    supervisor.wait()
    assert eventually(lambda: not any(alive(pid) for pid in pids))


def test_a_killed_guard_takes_the_command_along(start):
    process = start("import os, time; print('pids', os.getpid(), flush=True); time.sleep(60)")
    (command,) = pids_in(process.log)
    os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not alive(command))


def test_early_end_is_noticed_while_waiting_for_health(start):
    process = start("import sys; print('no model', flush=True); sys.exit(3)")
    began = time.monotonic()
    with pytest.raises(ProcessDied, match="exit status 3") as caught:
        wait_until_healthy({process: "http://127.0.0.1:9/health"}, timeout_s=30)
    assert "no model" in caught.value.tail
    assert time.monotonic() - began < 5


def test_a_server_that_never_answers_is_a_timeout(start):
    process = start(SLEEP)
    with pytest.raises(StartTimeout, match="not ready after 1 s"):
        wait_until_healthy({process: "http://127.0.0.1:9/health"}, timeout_s=1)


def test_health_is_http_200_and_nothing_else(start):
    answers = iter([503, 503, 200])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ready: list[str] = []
        wait_until_healthy(
            {start(SLEEP): f"http://127.0.0.1:{server.server_port}/health"},
            timeout_s=20,
            on_healthy=lambda process: ready.append(process.name),
        )
        server.shutdown()
    assert ready == ["fake"]
    assert next(answers, None) is None
