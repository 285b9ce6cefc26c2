"""Peers that do not fit: the first request gets a typed error on both sides, and both live on."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from smartgen.launch import Role, ServeMode

pytestmark = [pytest.mark.sglang, pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(900)]

WITHIN_S = 5.0


@pytest.fixture(scope="module")
def prefill_of(servers):
    """The prefill server of a mode, kept until another is asked for: they share a port."""
    running = {}

    def of(mode):
        if mode not in running:
            for process, _ in running.values():
                servers.stop(process)
            running.clear()
            running[mode] = servers.start(Role.PREFILL, mode)
        return running[mode]

    return of


def errors_of(client, prompt="The capital of France is"):
    """What each side says to one request, and how long the slower one took."""
    room_body = {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
        "bootstrap_host": client.bootstrap_host,
        "bootstrap_port": client.bootstrap_port,
        "bootstrap_room": time.monotonic_ns() % (1 << 60),
    }
    started = time.monotonic()

    def post(url):
        reply = requests.post(f"{url}/generate", json=room_body, timeout=60)
        return reply.status_code, reply.text

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(post, (client.prefill_url, client.decode_url)))
    return answers, time.monotonic() - started


def alive(*specs):
    return all(requests.get(f"{s.url}/health", timeout=30).status_code == 200 for s in specs)


def refuse(servers, prefill, mode, extra, words):
    """A decode server that does not fit comes, is refused by name on both sides, and goes."""
    decode = servers.start(Role.DECODE, mode, *extra)
    try:
        servers.wait(prefill, decode)
        before = len(prefill[0].log.read_text())
        answers, took = errors_of(servers.client(prefill[1], decode[1]))
        for status, text in answers:
            assert status >= 400
            assert all(word in text for word in words), text
        assert took < WITHIN_S
        assert alive(prefill[1], decode[1])
        logs = [prefill[0].log.read_text()[before:]]
        if mode is not ServeMode.STOCK:
            logs.append(decode[0].log.read_text())
        for log in logs:
            assert all(word in log for word in words)
    finally:
        servers.stop(decode[0])


@pytest.mark.parametrize(
    ("mode", "extra", "words"),
    [
        (ServeMode.FULL, (), ("mode", "layerwise", "full")),
        (ServeMode.LAYERWISE, ("--dtype", "float32"), ("dtype", "bfloat16", "float32")),
        (ServeMode.STOCK, (), ("smartgen", "mooncake")),
    ],
    ids=["mode", "dtype", "stock_decode"],
)
def test_decode_that_does_not_fit(servers, prefill_of, mode, extra, words):
    refuse(servers, prefill_of(ServeMode.LAYERWISE), mode, extra, words)


def test_prefill_serves_a_fitting_decode_after_one_of_another_page_size(servers, prefill_of):
    prefill = prefill_of(ServeMode.LAYERWISE)
    refuse(servers, prefill, ServeMode.LAYERWISE, ("--page-size", "32"), ("page", "16", "32"))
    decode = servers.start(Role.DECODE)
    try:
        servers.wait(decode)
        answer = servers.client(prefill[1], decode[1]).ask("The capital of France is")
        assert "Paris" in answer.text
    finally:
        servers.stop(decode[0])


def test_stock_prefill_and_our_decode(servers, prefill_of):
    stock = prefill_of(ServeMode.STOCK)
    decode = servers.start(Role.DECODE)
    try:
        servers.wait(stock, decode)
        ((stock_status, _), (status, text)), took = errors_of(servers.client(stock[1], decode[1]))
        # A stock server fails the request as well, but knows no reason.
        assert min(stock_status, status) >= 500
        assert "smartgen" in text
        assert "stock mooncake" in text
        assert took < WITHIN_S
        assert alive(stock[1], decode[1])
        assert "stock mooncake" in decode[0].log.read_text()
    finally:
        servers.stop(decode[0])
