"""The agents over Mooncake's real engine: two processes on 127.0.0.1, compared byte by byte."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from smartgen.core import Destination, KVGeometry, Mode, RequestKey
from smartgen.runtime import DecodeAgent, FailureKind, PrefillAgent
from smartgen.transport import MooncakeTransport

pytestmark = pytest.mark.mooncake

LAYERS, POOL, PAGE_BYTES = 4, 512, 8192
SHAPE = (2 * LAYERS, POOL, PAGE_BYTES)
GEOMETRY = KVGeometry(layers=LAYERS, page_size=16, page_bytes=(PAGE_BYTES,) * (2 * LAYERS))
PATIENCE_S = 20.0


class DecodeNode:
    def __init__(self, folder):
        path = folder / "pool"
        self.pool = np.memmap(path, dtype=np.uint8, mode="w+", shape=SHAPE)
        script = Path(__file__).with_name("decode_node.py")
        sizes = [str(SHAPE[0]), str(POOL * PAGE_BYTES)]
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(path), *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = json.loads(self._line())
        self.session, self.bases = said["session"], tuple(said["bases"])

    def _line(self):
        """The engine prints lines of its own; ours is the one that is JSON."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return line
        raise AssertionError("the decode process did not start")

    def signal(self, number):
        os.kill(self.process.pid, number)

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


class PrefillNode:
    def __init__(self, src, **settings):
        self.src = src
        self.agent_of_peer = DecodeAgent(layers=LAYERS, debug=True)
        self.said, self.failures = {}, {}
        self.ended = threading.Semaphore(0)
        self.failed_once = threading.Event()
        transport = MooncakeTransport(host="127.0.0.1", protocol="tcp")
        for entry in src:
            transport.register(int(entry.ctypes.data), entry.nbytes)
        self.agent = PrefillAgent(
            transport=transport,
            control=self,
            geometry=GEOMETRY,
            callbacks=self,
            debug=True,
            **settings,
        )
        self.agent.start()

    def send(self, endpoint, frames):
        assert self.agent_of_peer.on_message(frames)

    def delivered(self, key, report):
        self.said.setdefault(key, []).append("delivered")
        self.agent_of_peer.succeeded(key)

    def failed(self, key, failure):
        self.said.setdefault(key, []).append("failed")
        self.failures[key] = failure
        self.failed_once.set()

    def drained(self, key):
        self.said.setdefault(key, []).append("drained")
        self.ended.release()

    def open(self, key, peer, dst_pages):
        self.agent_of_peer.open(key, total_pages=len(dst_pages), mode=Mode.LAYERWISE)
        destination = Destination(
            session=peer.session, endpoint=("d", 1), entries=peer.bases, pages=dst_pages
        )
        self.agent.open(key, destination, tuple(int(entry.ctypes.data) for entry in self.src))

    def wait(self, count):
        for _ in range(count):
            assert self.ended.acquire(timeout=PATIENCE_S), f"not ended: {self.said}"


@pytest.fixture
def peer(tmp_path):
    node = DecodeNode(tmp_path)
    yield node
    node.close()


@pytest.fixture
def make_prefill():
    nodes = []

    def make(**settings):
        src = np.random.default_rng(1).integers(0, 255, SHAPE, dtype=np.uint8)
        nodes.append(PrefillNode(src, **settings))
        return nodes[-1]

    yield make
    for node in nodes:
        node.agent.stop(timeout_s=2.0)


def send_all(node, key, src, chunk=64):
    for start in range(0, len(src), chunk):
        pages = src[start : start + chunk]
        for layer in range(LAYERS):
            node.agent.layer_written(key, layer, start, pages)
        node.agent.chunk_committed(key, start, pages, start + len(pages) == len(src))


def test_scattered_pages_of_two_requests_arrive_byte_for_byte(peer, make_prefill):
    node, rng = make_prefill(), np.random.default_rng(2)
    src = rng.permutation(POOL).astype(np.int32)
    dst = rng.permutation(POOL).astype(np.int32)
    dst[:150] = np.sort(dst[:150])
    src[:150] = np.sort(src[:150])
    parts = {RequestKey(1, 1): slice(0, 150), RequestKey(2, 1): slice(150, 300)}
    first = np.arange(32, dtype=np.uint8)
    for key, part in parts.items():
        node.open(key, peer, dst[part])
    for key, part in parts.items():
        send_all(node, key, src[part])
        # Aux goes into a page no request uses.
        unused = peer.bases[0] + int(dst[400 + key.room]) * PAGE_BYTES
        node.agent.aux_ready(key, [(first.ctypes.data, unused, 32)])
    node.wait(2)
    for key, part in parts.items():
        assert node.said[key] == ["delivered", "drained"]
        assert node.agent_of_peer.ready(key)
        assert (peer.pool[:, dst[part]] == node.src[:, src[part]]).all()
        assert (peer.pool[0, dst[400 + key.room], :32] == first).all()
    assert not peer.pool[:, dst[300:400]].any()


def greet(node, peer):
    """A first small request, so that the two engines know each other."""
    key, page = RequestKey(100, 1), np.zeros(1, dtype=np.int32)
    node.open(key, peer, page)
    node.agent.chunk_committed(key, 0, page, True)
    node.agent.aux_ready(key, [])
    node.wait(1)
    assert node.said.pop(key) == ["delivered", "drained"]


def test_a_peer_killed_in_the_middle_is_a_typed_failure_and_drained(peer, make_prefill):
    node = make_prefill()
    greet(node, peer)
    key, pages = RequestKey(1, 1), np.arange(POOL, dtype=np.int32)
    peer.signal(signal.SIGSTOP)  # so that there is a middle
    node.open(key, peer, pages)
    node.agent.chunk_committed(key, 0, pages, True)
    time.sleep(0.3)
    assert not node.said
    peer.signal(signal.SIGKILL)
    began = time.monotonic()
    node.wait(1)
    assert time.monotonic() - began < PATIENCE_S
    assert node.said[key] == ["failed", "drained"]
    assert node.failures[key].kind in (FailureKind.WRITE_FAILED, FailureKind.PEER_LOST)
    # The agent goes on: the next request to the same place fails too, and quickly.
    node.open(RequestKey(2, 1), peer, pages)
    node.agent.chunk_committed(RequestKey(2, 1), 0, pages, True)
    node.wait(1)
    assert node.said[RequestKey(2, 1)] == ["failed", "drained"]


def test_a_peer_that_stops_fails_at_the_deadline_and_drains_when_the_engine_gives_up(
    peer, make_prefill
):
    node = make_prefill(write_deadline_s=1.0)
    greet(node, peer)
    key, pages = RequestKey(1, 1), np.arange(POOL, dtype=np.int32)
    peer.signal(signal.SIGSTOP)
    node.open(key, peer, pages)
    began = time.monotonic()
    node.agent.chunk_committed(key, 0, pages, True)
    assert node.failed_once.wait(PATIENCE_S)
    assert time.monotonic() - began < 5.0
    assert node.failures[key].kind is FailureKind.WRITE_DEADLINE
    assert node.said[key] == ["failed"]
    node.wait(1)
    assert node.said[key] == ["failed", "drained"]


def test_a_peer_stopped_before_first_contact_holds_nobody_up(peer, make_prefill, tmp_path):
    node = make_prefill(write_deadline_s=1.0)
    folder = tmp_path / "other"
    folder.mkdir()
    other = DecodeNode(folder)
    try:
        peer.signal(signal.SIGSTOP)
        key, pages = RequestKey(1, 1), np.arange(8, dtype=np.int32)
        node.open(key, peer, pages)
        node.agent.chunk_committed(key, 0, pages, True)
        time.sleep(0.2)
        greet(node, other)
        assert node.failed_once.wait(5)
        node.wait(1)
        assert node.said[key] == ["failed", "drained"]
    finally:
        other.close()


def test_nobody_there_is_a_typed_failure(make_prefill):
    node = make_prefill()

    class Nobody:
        session, bases = "127.0.0.1:9", tuple(range(0, 8 * 4096, 4096))

    key, pages = RequestKey(1, 1), np.arange(8, dtype=np.int32)
    node.open(key, Nobody, pages)
    node.agent.chunk_committed(key, 0, pages, True)
    node.wait(1)
    assert node.said[key] == ["failed", "drained"]
    assert "ports are open" in str(node.failures[key])
