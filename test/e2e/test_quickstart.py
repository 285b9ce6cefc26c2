"""The README's commands, for real."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests
from smartgen.client import RequestFailed
from smartgen.client.chat import ask_chat

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.sglang, pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(600)]


def smartgen(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "smartgen.cli", *arguments]


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_quickstart_answers_right_and_leaves_nothing(one_pair_at_a_time, tmp_path):
    record = tmp_path / "answers.json"
    process = subprocess.Popen(
        smartgen("quickstart", "--json", str(record)), stdout=subprocess.PIPE, text=True
    )
    seen: dict[int, psutil.Process] = {}
    while process.poll() is None:
        seen |= {child.pid: child for child in children_of(process.pid)}
        time.sleep(1)
    shown, _ = process.communicate()
    assert process.returncode == 0, shown
    assert "3 of 3 answers are right." in shown
    result = json.loads(record.read_text())
    assert result["all_right"] is True
    assert result["mode"] == "layerwise"
    document = result["questions"][2]
    assert 1_800 < document["prompt_tokens"] < 2_200
    assert 0 < document["ttft_s"] <= document["ttst_s"] <= document["total_s"]
    # 23,040 bytes for each token that the prefix cache did not have.
    moved = sum(document["kv_bytes_by_path"].values())
    assert moved > 1_800 * 23_040
    assert len(seen) >= 9
    _, left = psutil.wait_procs(list(seen.values()), timeout=10)
    assert not left


def test_up_serves_and_tells_who_died(one_pair_at_a_time, model, tmp_path):
    process = subprocess.Popen(
        smartgen("up", "--port", "0", "--log-dir", str(tmp_path), "--start-timeout", "300"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        shown = ""
        while "curl -s" not in shown:
            line = process.stdout.readline()
            assert line, shown
            shown += line
        curl = shlex.split(shown.splitlines()[-1])
        answered = subprocess.run(curl, capture_output=True, text=True, timeout=120)
        assert "Paris" in answered.stdout
        url = re.search(r"serving at (\S+)/v1", shown)
        assert url is not None
        too_long = {"model": "default", "prompt": "word " * 9_500, "max_tokens": 4}
        refused = requests.post(f"{url[1]}/v1/completions", json=too_long, timeout=60)
        assert refused.status_code == 400, refused.text
        started = children_of(process.pid)
        decode = next(
            p for p in started if "guard.py" in str(p.cmdline()) and "decode" in p.cmdline()
        )
        server = decode.children()[0]
        server.send_signal(signal.SIGKILL)
        with pytest.raises(RequestFailed):
            ask_chat(url[1], "What is the capital of France?", timeout_s=60)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert process.returncode == 1
    assert "decode ended unexpectedly (signal 9)" in rest
    _, left = psutil.wait_procs(started, timeout=10)
    assert not left


def test_the_readmes_commands_exist_and_the_first_is_the_one_tested_here():
    section = (ROOT / "README.md").read_text().partition("## Try it")[2].partition("\n## ")[0]
    commands = [
        line
        for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
    ]
    assert commands[0] == "scripts/quickstart"
    for command in commands:
        program, *arguments = shlex.split(command)
        if program.startswith(".venv/bin/"):
            # The tests may run in another environment than .venv.
            words = [word for word in arguments if not word.startswith("--")][:1]
            options = [word for word in arguments if word.startswith("--")]
            done = subprocess.run(smartgen(*words, "--help"), capture_output=True, text=True)
            assert done.returncode == 0
            assert all(option in done.stdout for option in options)
        else:
            assert os.access(ROOT / program, os.X_OK)
