"""A server that dies while requests run: its peer's client hears of it within the heartbeat limits."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests
from smartgen.launch import Role

pytestmark = [pytest.mark.sglang, pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(900)]

# Two missed heartbeats of 5 s each, and the time of one answer.
HEARTBEAT_LIMIT_S = 20.0


def post_both(prefill, decode, seed, tokens=6000, new_tokens=64):
    """Futures of both servers' answers (status, text, seconds) to one long request."""
    body = {
        "input_ids": random.Random(seed).choices(range(1000, 40000), k=tokens),
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        "bootstrap_host": prefill.host,
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": time.monotonic_ns() % (1 << 60),
    }

    def post(url):
        started = time.monotonic()
        try:
            reply = requests.post(f"{url}/generate", json=body, timeout=120)
            return reply.status_code, reply.text, time.monotonic() - started
        except requests.ConnectionError as error:
            return 0, str(error), time.monotonic() - started

    pool = ThreadPoolExecutor(2)
    futures = [pool.submit(post, spec.url) for spec in (prefill, decode)]
    pool.shutdown(wait=False)
    return futures


def kill(process):
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            child.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def test_either_server_may_die(servers):
    prefill, decode = servers.start(Role.PREFILL), servers.start(Role.DECODE)
    servers.wait(prefill, decode)
    servers.client(prefill[1], decode[1]).ask("Warm up", max_new_tokens=2)

    # Decode dies while the prompt is computed and sent: prefill's client gets an error.
    at_prefill, _ = post_both(prefill[1], decode[1], 1)
    time.sleep(1.0)
    kill(decode[0])
    status, text, took = at_prefill.result(timeout=120)
    assert status >= 500, text
    assert took < HEARTBEAT_LIMIT_S + 15  # and what was left of the prompt
    servers.stop(decode[0])

    # A new decode server is served by the same prefill server.
    decode = servers.start(Role.DECODE)
    servers.wait(decode)
    answer = servers.client(prefill[1], decode[1]).ask("The capital of France is")
    assert "Paris" in answer.text

    # Prefill dies while the prompt is computed: decode's client gets an error.
    _, at_decode = post_both(prefill[1], decode[1], 2)
    time.sleep(1.0)
    killed = time.monotonic()
    kill(prefill[0])
    status, text, _ = at_decode.result(timeout=120)
    assert status >= 500, text
    assert time.monotonic() - killed < HEARTBEAT_LIMIT_S
    servers.stop(prefill[0])

    # And decode lives on to work with the next prefill server on the same address.
    prefill = servers.start(Role.PREFILL)
    servers.wait(prefill)
    assert requests.get(f"{decode[1].url}/health", timeout=30).status_code == 200
    answer = servers.client(prefill[1], decode[1]).ask("The capital of France is")
    assert "Paris" in answer.text
