"""`smartgen up` as a user runs it, with small stand-ins for SGLang's server and router."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

# Serves 200 on its port, with a child process as SGLang's servers have.
STAND_IN = """
import http.server, os, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
role = "prefill" if "prefill" in sys.argv else "decode" if "decode" in sys.argv else "router"
if os.environ.get("FAKE_FAILS") == role:
    sys.exit("cannot load the model")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
print("serving as", role, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def up(tmp_path: Path, model: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    for module in ("sglang/launch_server.py", "sglang_router/launch_router.py"):
        path = tmp_path / "stand-ins" / module
        path.parent.mkdir(parents=True)
        (path.parent / "__init__.py").touch()
        path.write_text(STAND_IN)
    started: list[subprocess.Popen[str]] = []

    def run(*options: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "smartgen.cli", "up", "--model", str(model), "--port", "0"),
                *("--log-dir", str(tmp_path / "logs"), *options),
            ],
            env={**os.environ, "PYTHONPATH": str(tmp_path / "stand-ins"), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def read_until_serving(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    shown = ""
    while "curl -s" not in shown:
        line = process.stdout.readline()
        assert line, shown
        shown += line
    return shown


def everything_below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    assert len(found) == 9  # a guard, a server and its child, three times
    return found


def require_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=15)
    assert not left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_serves_and_stops_without_trace(up, tmp_path, number):
    process = up()
    shown = read_until_serving(process)
    url = re.search(r"serving at (http://127.0.0.1:\d+)/v1", shown)
    assert url is not None
    assert f"curl -s {url[1]}/v1/chat/completions" in shown
    for name in ("prefill", "decode", "router"):
        assert re.search(rf"{name} +ready after .* {tmp_path}/logs/{name}.log", shown)
    below = everything_below(process)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    assert "stopped" in rest
    require_gone(below)


@pytest.mark.parametrize("victim", ["prefill", "decode", "router"])
def test_when_one_process_dies_it_says_which_and_stops_the_others(up, victim):
    process = up()
    read_until_serving(process)
    below = everything_below(process)
    module = "launch_router" if victim == "router" else f"--disaggregation-mode {victim}"
    target = [
        p for p in below if module in " ".join(p.cmdline()) and "guard.py" not in str(p.cmdline())
    ]
    assert len(target) == 1
    target[0].kill()
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"serving as {victim}" in rest
    assert f"smartgen: {victim} ended unexpectedly (signal 9); its log is" in rest
    require_gone(below)


def test_a_server_that_cannot_start_ends_the_command_at_once(up):
    began = time.monotonic()
    process = up(FAKE_FAILS="decode")
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "cannot load the model" in shown
    assert "smartgen: decode ended unexpectedly (exit status 1)" in shown
    assert time.monotonic() - began < 25


def test_killed_with_9_it_leaves_nothing(up):
    process = up()
    read_until_serving(process)
    below = everything_below(process)
    process.kill()
    require_gone(below)


def test_options_after_two_dashes_reach_both_servers(up):
    process = up("--", "--page-size", "32")
    read_until_serving(process)
    lines = [" ".join(p.cmdline()) for p in everything_below(process)]
    servers = [line for line in lines if "launch_server" in line and "guard.py" not in line]
    assert len(servers) == 2
    assert all(line.endswith("--page-size 32") for line in servers)


def test_a_bad_port_or_model_is_one_sentence_before_anything_starts(up, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = str(holder.getsockname()[1])
        for options, sentence in (
            (("--port", taken), f"smartgen: --port {taken} is in use"),
            (("--model", str(tmp_path / "no")), f"smartgen: --model {tmp_path}/no is not a folder"),
            (("--", "--port", "1"), "smartgen: --port after `--` is set by smartgen itself"),
        ):
            process = up(*options)
            shown, _ = process.communicate(timeout=30)
            assert process.returncode == 1
            assert shown.startswith(sentence), shown
            assert len(shown.splitlines()) == 1
    assert not (tmp_path / "logs").exists()


def test_the_curl_line_carries_valid_json(up):
    line = read_until_serving(up()).splitlines()[-1]
    body = json.loads(line.partition("-d '")[2].rstrip("'"))
    assert body["messages"][0]["content"] == "What is the capital of France?"
