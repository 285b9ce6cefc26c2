"""The prefill agent with its real thread, over the loopback transport."""

import threading
import time

import numpy as np
import pytest
from smartgen.core import Destination, KVGeometry, Mode, RequestKey
from smartgen.runtime import DecodeAgent, FailureKind, PrefillAgent
from smartgen.transport import LoopbackTransport

LAYERS, POOL, PAGE_BYTES = 4, 256, 1024


class Pair:
    """Two pools, two agents, and the host between them."""

    def __init__(self, **transport):
        self.src = np.random.default_rng(3).integers(
            0, 255, (2 * LAYERS, POOL, PAGE_BYTES), dtype=np.uint8
        )
        self.dst = np.zeros_like(self.src)
        self.transport = LoopbackTransport(clock=time.monotonic, **transport)
        self.decode = DecodeAgent(layers=LAYERS, debug=True)
        self.said = {}
        self.ended = threading.Semaphore(0)
        self.prefill = PrefillAgent(
            transport=self.transport,
            control=self,
            geometry=KVGeometry(
                layers=LAYERS, page_size=1, page_bytes=(PAGE_BYTES,) * (2 * LAYERS)
            ),
            callbacks=self,
            debug=True,
        )
        self.prefill.start()

    def send(self, endpoint, frames):
        assert self.decode.on_message(frames)

    def delivered(self, key, report):
        self.say(key, "delivered")
        self.decode.succeeded(key)

    def failed(self, key, failure):
        self.say(key, failure.kind)
        self.decode.failed(key, str(failure))

    def drained(self, key):
        self.say(key, "drained")
        self.ended.release()

    def say(self, key, what):
        assert threading.current_thread().name == "smartgen-prefill"
        self.said.setdefault(key, []).append(what)

    def bases(self, pool):
        return tuple(int(entry.ctypes.data) for entry in pool)

    def open(self, key, dst_pages):
        self.decode.open(key, total_pages=len(dst_pages), mode=Mode.LAYERWISE)
        destination = Destination(
            session="peer", endpoint=("d", 1), entries=self.bases(self.dst), pages=dst_pages
        )
        self.prefill.open(key, destination, self.bases(self.src))

    def wait(self, count):
        for _ in range(count):
            assert self.ended.acquire(timeout=20), f"not ended: {self.said}"


@pytest.fixture
def make_pair():
    pairs = []

    def make(**transport):
        pairs.append(Pair(**transport))
        return pairs[-1]

    yield make
    for pair in pairs:
        assert pair.prefill.stop()


@pytest.mark.parametrize(
    "transport",
    [{}, {"rate_bytes_per_s": 40e6}, {"latency_s": 0.002, "reorder": True}],
    ids=["instant", "slow", "far"],
)
def test_random_pages_of_several_requests_arrive_byte_for_byte(make_pair, transport):
    pair, rng = make_pair(**transport), np.random.default_rng(5)
    src_free, dst_free = list(rng.permutation(POOL)), list(rng.permutation(POOL))
    jobs = {}
    for room in range(5):
        count = int(rng.integers(1, 45))
        src = np.array([src_free.pop() for _ in range(count)], dtype=np.int32)
        dst = np.array([dst_free.pop() for _ in range(count)], dtype=np.int32)
        jobs[RequestKey(room, 1)] = (np.sort(src) if room % 2 else src, dst)
        pair.open(RequestKey(room, 1), dst)
    for key, (src, _) in jobs.items():
        start = 0
        while start < len(src):
            chunk = src[start : start + int(rng.integers(1, 20))]
            for layer in range(LAYERS):
                if rng.random() < 0.8:
                    pair.prefill.layer_written(key, layer, start, chunk)
            pair.prefill.chunk_committed(key, start, chunk, start + len(chunk) == len(src))
            start += len(chunk)
        pair.prefill.aux_ready(key, [])
    pair.wait(len(jobs))
    for key, (src, dst) in jobs.items():
        assert pair.said[key] == ["delivered", "drained"]
        assert pair.decode.ready(key)
        assert (pair.dst[:, dst] == pair.src[:, src]).all()
    untouched = np.setdiff1d(np.arange(POOL), np.concatenate([d for _, d in jobs.values()]))
    assert not pair.dst[:, untouched].any()


def test_aux_lands_with_the_rest(make_pair):
    pair = make_pair()
    src = np.arange(64, dtype=np.uint8)
    dst = np.zeros_like(src)
    key = RequestKey(1, 1)
    pair.open(key, np.zeros(0, np.int32))
    pair.prefill.chunk_committed(key, 0, np.zeros(0, np.int32), True)
    pair.prefill.aux_ready(key, [(src.ctypes.data, dst.ctypes.data, 64)])
    pair.wait(1)
    assert (src == dst).all()


def test_abort_in_the_middle_is_drained(make_pair):
    pair = make_pair(rate_bytes_per_s=1e6)
    key, pages = RequestKey(1, 1), np.arange(POOL, dtype=np.int32)
    pair.open(key, pages)
    pair.prefill.chunk_committed(key, 0, pages, True)
    time.sleep(0.05)
    pair.prefill.abort(key, "client left")
    pair.wait(1)
    assert pair.said[key] == ["drained"]
    assert pair.transport.in_flight == 0


def test_posts_from_many_threads(make_pair):
    pair = make_pair()
    pages = np.arange(8, dtype=np.int32)

    def host(room):
        key = RequestKey(room, 1)
        pair.open(key, pages + 8 * room)
        pair.prefill.layer_written(key, 0, 0, pages)
        pair.prefill.chunk_committed(key, 0, pages, True)
        pair.prefill.aux_ready(key, [])

    threads = [threading.Thread(target=host, args=(room,)) for room in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair.wait(20)
    assert all(what == ["delivered", "drained"] for what in pair.said.values())


def test_nonsense_posts_do_not_end_the_thread(make_pair):
    pair = make_pair()
    key, pages = RequestKey(1, 1), np.arange(4, dtype=np.int32)
    pair.open(key, pages)
    pair.prefill.layer_written(key, 0, 0, "not pages")
    pair.wait(1)
    assert pair.said[key] == [FailureKind.INTERNAL, "drained"]
    pair.prefill.open("not a key", None, 3)
    other = RequestKey(2, 1)
    pair.open(other, pages)
    pair.prefill.chunk_committed(other, 0, pages, True)
    pair.prefill.aux_ready(other, [])
    pair.wait(1)
    assert pair.said[other] == ["delivered", "drained"]
    assert pair.prefill.snapshot().counters.internal_errors == 2


def test_stop_fails_what_is_open_and_ends_the_thread(make_pair):
    pair = make_pair(rate_bytes_per_s=1e6)
    key, pages = RequestKey(1, 1), np.arange(POOL, dtype=np.int32)
    pair.open(key, pages)
    pair.prefill.chunk_committed(key, 0, pages, True)
    time.sleep(0.02)
    assert pair.prefill.stop()
    assert pair.said[key] == [FailureKind.STOPPED, "drained"]
    assert pair.prefill.stop()
    pair.prefill.snapshot()


def test_stop_is_bounded_when_a_write_never_ends(make_pair):
    pair = make_pair()
    pair.transport.stall("peer")
    key, pages = RequestKey(1, 1), np.arange(8, dtype=np.int32)
    pair.open(key, pages)
    pair.prefill.chunk_committed(key, 0, pages, True)
    while not pair.transport.in_flight:
        time.sleep(0.001)
    began = time.monotonic()
    assert pair.prefill.stop(timeout_s=1.0)
    assert time.monotonic() - began < 2.0
    assert pair.said[key] == [FailureKind.STOPPED]


def test_an_idle_agent_uses_no_processor(make_pair):
    pair = make_pair()
    key, pages = RequestKey(1, 1), np.arange(8, dtype=np.int32)
    pair.open(key, pages)
    pair.prefill.chunk_committed(key, 0, pages, True)
    pair.prefill.aux_ready(key, [])
    pair.wait(1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_a_post_costs_microseconds(make_pair):
    pair = make_pair(rate_bytes_per_s=1e6)
    key, pages = RequestKey(1, 1), np.arange(8, dtype=np.int32)
    nobody = RequestKey(2, 1)
    pair.open(key, pages)
    began = time.perf_counter()
    for _ in range(1000):
        pair.prefill.layer_written(nobody, 0, 0, pages)
    # Generous: the machine is shared, and the agent's thread works meanwhile.
    assert (time.perf_counter() - began) / 1000 < 200e-6
    pair.prefill.abort(key, "done")
    pair.wait(1)
