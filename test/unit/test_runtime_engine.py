"""The prefill engine on a virtual clock: every failure path, without threads or waiting."""

import numpy as np
import pytest
from smartgen.core import Destination, KVGeometry, Mode, RequestKey
from smartgen.metrics import MemorySink, catalog
from smartgen.runtime import FailureKind
from smartgen.runtime.engine import SendingEngine
from smartgen.runtime.outbox import Outbox
from smartgen.runtime.recorder import Recorder
from smartgen.transfer import Aborted, AuxReady, ChunkCommitted, LayerWritten, Pacing
from smartgen.transport import LoopbackTransport
from smartgen.wire import Delivered, Landed, unpack

LAYERS, PAGES, PAGE_BYTES = 2, 64, 512
A, B = RequestKey(1, 1), RequestKey(2, 1)


class World:
    """Pools, a transport and an engine; also the host: control sender and callbacks."""

    def __init__(self, **transport):
        self.now = 100.0
        self.control_fails = 0
        self.raise_in = ""
        self.frames = []
        self.said = []
        self.src = np.random.default_rng(1).integers(
            1, 255, (2 * LAYERS, PAGES, PAGE_BYTES), dtype=np.uint8
        )
        self.dst = np.zeros_like(self.src)
        self.sink = MemorySink()
        self.transport = LoopbackTransport(clock=lambda: self.now, **transport)
        self.recorder = Recorder(self.sink)
        self.engine = SendingEngine(
            transport=self.transport,
            outbox=Outbox(self),
            geometry=KVGeometry(
                layers=LAYERS, page_size=1, page_bytes=(PAGE_BYTES,) * (2 * LAYERS)
            ),
            callbacks=self,
            recorder=self.recorder,
            clock=lambda: self.now,
            pacing=Pacing(min_chunk_bytes=2048, initial_chunk_bytes=2048, max_chunk_bytes=4096),
            write_deadline_s=15.0,
            debug=True,
        )

    # the host

    def send(self, endpoint, frames):
        if self.control_fails:
            self.control_fails -= 1
            raise OSError("no route")
        self.frames.append((endpoint, frames))

    def delivered(self, key, report):
        self.said.append(("delivered", key))
        self.report = report
        if self.raise_in == "delivered":
            raise RuntimeError("host bug")

    def failed(self, key, failure):
        self.said.append((failure.kind, key))
        if self.raise_in == "failed":
            raise RuntimeError("host bug")

    def drained(self, key):
        assert (
            not [w for w in self.transport._pending.values() if w.session == self.session_of(key)]
            or key not in self.alone
        )
        self.said.append(("drained", key))

    alone = frozenset()  # requests that have their session for themselves

    def session_of(self, key):
        return f"s{key.room}"

    # what a test does

    def open(self, key, src_pages, dst_pages, session=None):
        bases = [
            tuple(int(p[e].ctypes.data) for e in range(2 * LAYERS)) for p in (self.src, self.dst)
        ]
        destination = Destination(
            session=session or self.session_of(key),
            endpoint=("d", key.room),
            entries=bases[1],
            pages=np.array(dst_pages, dtype=np.int32),
        )
        self.engine.open(key, self.now, destination, bases[0], Mode.LAYERWISE)

    def commit(self, key, src_pages, start=0, last=True, aux=True):
        pages = np.array(src_pages, dtype=np.int32)
        self.engine.post(key, ChunkCommitted(self.now, start=start, src_pages=pages, last=last))
        if last and aux:
            self.engine.post(key, AuxReady(self.now, writes=()))

    def run(self, seconds, step=0.01):
        until = self.now + seconds
        while self.now < until:
            self.engine.turn()
            self.engine.check()
            self.now += step

    def whole(self, key, src_pages, dst_pages, **more):
        self.open(key, src_pages, dst_pages, **more)
        self.commit(key, src_pages)

    def said_of(self, key):
        return [what for what, who in self.said if who == key]


SRC, DST = [3, 4, 5, 9, 11, 12], [7, 8, 9, 10, 30, 2]


def test_bytes_arrive_and_the_peer_is_told_before_success():
    world = World(rate_bytes_per_s=1e6, reorder=True)
    world.open(A, SRC, DST)
    for layer in range(LAYERS):
        pages = np.array(SRC[:4], dtype=np.int32)
        world.engine.post(A, LayerWritten(world.now, layer=layer, start=0, src_pages=pages))
        world.run(0.003, step=0.001)
    world.commit(A, SRC[:4], last=False)
    world.commit(A, SRC[4:], start=4)
    world.run(1.0)
    assert (world.dst[:, DST] == world.src[:, SRC]).all()
    assert world.said_of(A) == ["delivered", "drained"]
    messages = [m for _, frames in world.frames for m in unpack(frames)]
    landed = {
        (m.layer, p) for m in messages if isinstance(m, Landed) for r in m.runs for p in range(*r)
    }
    assert landed == {(layer, p) for layer in range(LAYERS) for p in range(6)}
    assert isinstance(messages[-1], Delivered)
    assert world.report.total_bytes == 6 * LAYERS * 2 * PAGE_BYTES
    assert world.sink.value(catalog.SENT_BYTES, path="layerwise") == world.report.total_bytes
    assert world.sink.value(catalog.REQUESTS, mode="layerwise") == 1
    assert len(world.sink.values(catalog.TRANSFER_SECONDS)) == 1


def test_a_failed_write_fails_its_request_and_no_other():
    world = World(rate_bytes_per_s=1e5)
    world.transport.fail_next()
    world.whole(A, SRC, DST)
    world.whole(B, SRC, [20, 21, 22, 23, 24, 25])
    world.run(2.0)
    assert world.said_of(A) == [FailureKind.WRITE_FAILED, "drained"]
    assert world.said_of(B) == ["delivered", "drained"]
    assert world.sink.value(catalog.FAILURES, reason="write_failed") == 1


def test_pages_are_not_given_back_while_a_write_runs():
    world = World()
    world.alone = {A}
    world.transport.stall("s1")
    world.whole(A, SRC, DST)
    world.run(1.0)
    world.engine.abort(A, Aborted(world.now, reason="client left"))
    world.run(60.0, step=0.5)
    assert world.said == []
    world.transport.resume("s1")
    world.run(0.1)
    assert world.said == [("drained", A)]
    assert world.sink.value(catalog.ABORTS) == 1


def test_a_write_past_its_deadline_fails_within_it_but_stays_followed():
    world = World()
    world.alone = {A}
    world.transport.stall("s1")
    world.whole(A, SRC, DST)
    world.run(14.9, step=0.1)
    assert world.said == []
    world.run(0.3, step=0.1)
    assert world.said_of(A) == [FailureKind.WRITE_DEADLINE]
    world.run(30.0, step=0.5)
    assert world.said_of(A) == [FailureKind.WRITE_DEADLINE]
    world.transport.resume("s1")
    world.run(0.1)
    assert world.said_of(A) == [FailureKind.WRITE_DEADLINE, "drained"]


def test_a_stalled_peer_fails_all_its_requests_and_later_ones_at_once():
    world = World()
    world.transport.stall("s1")
    world.whole(A, SRC, DST)
    world.whole(B, SRC, DST, session="s1")
    world.run(15.3, step=0.1)
    late = RequestKey(3, 1)
    world.whole(late, SRC, DST, session="s1")
    world.run(0.3, step=0.1)
    for key in (A, B, late):
        assert world.said_of(key)[0] is FailureKind.WRITE_DEADLINE


def test_a_slow_peer_is_not_a_stalled_one():
    world = World(rate_bytes_per_s=600.0)
    world.whole(A, SRC, DST)
    world.run(60.0, step=0.1)
    assert world.said_of(A) == ["delivered", "drained"]


def test_a_stalled_peer_does_not_hold_up_another():
    world = World()
    world.transport.stall("s1")
    world.whole(A, SRC, DST)
    world.whole(B, SRC, [20, 21, 22, 23, 24, 25])
    world.run(0.5)
    assert world.said_of(B) == ["delivered", "drained"]


def test_a_lost_peer_fails_running_and_new_requests_quickly():
    world = World(rate_bytes_per_s=1e4)
    world.whole(A, SRC, DST)
    world.run(0.2)
    world.transport.lose("s1")
    world.whole(B, SRC, DST, session="s1")
    world.run(1.0)
    for key in (A, B):
        kind, end = world.said_of(key)
        assert kind in (FailureKind.WRITE_FAILED, FailureKind.PEER_LOST)
        assert end == "drained"


def test_three_failures_in_a_row_mean_the_peer_is_lost():
    world = World(rate_bytes_per_s=1e4)
    keys = [RequestKey(room, 1) for room in range(10, 16)]
    for key in keys:
        world.whole(key, SRC, DST, session="s1")
    world.transport.lose("s1")
    world.run(2.0)
    kinds = [world.said_of(key)[0] for key in keys]
    assert kinds.count(FailureKind.WRITE_FAILED) == 3
    assert kinds.count(FailureKind.PEER_LOST) == 3


def test_control_messages_are_retried():
    world = World()
    world.control_fails = 2
    world.whole(A, SRC, DST)
    world.run(2.0)
    assert world.said_of(A) == ["delivered", "drained"]


def test_a_peer_that_cannot_be_told_fails_the_request():
    world = World()
    world.control_fails = 100
    world.whole(A, SRC, DST)
    world.run(3.0)
    assert world.said_of(A) == [FailureKind.CONTROL, "drained"]
    assert world.recorder.counters.delivered == 0


def test_a_machine_bug_fails_one_request_and_tells_the_story(caplog):
    world = World()
    world.open(A, SRC, DST)
    world.whole(B, SRC, [20, 21, 22, 23, 24, 25])
    world.commit(A, SRC[:2], start=2, last=False)
    world.run(0.2)
    assert world.said_of(A) == [FailureKind.INTERNAL, "drained"]
    assert world.said_of(B) == ["delivered", "drained"]
    assert "do not follow 0" in caplog.text


@pytest.mark.parametrize("where", ["delivered", "failed"])
def test_a_callback_that_raises_hurts_only_its_request(where, caplog):
    world = World()
    world.raise_in = where
    if where == "failed":
        world.transport.lose("s1")
    world.whole(A, SRC, DST)
    world.whole(B, SRC, [20, 21, 22, 23, 24, 25])
    world.raise_in = where
    world.run(0.5)
    assert world.said_of(A)[-1] == world.said_of(B)[-1] == "drained"
    if where == "delivered":
        assert FailureKind.HOST in world.said_of(A)
    assert "host bug" in caplog.text


def test_an_abort_is_always_answered_and_late_posts_are_counted():
    world = World()
    world.engine.abort(A, Aborted(world.now, reason="x"))
    world.commit(A, SRC)
    assert world.said == [("drained", A)]
    assert world.recorder.counters.unknown_posts == 3


def test_a_request_that_cannot_be_opened_is_answered():
    world = World()
    destination = Destination(
        session="s1", endpoint=("d", 1), entries=(1,), pages=np.zeros(1, np.int32)
    )
    world.engine.open(A, world.now, destination, (1,), Mode.LAYERWISE)
    assert world.said_of(A) == [FailureKind.INTERNAL, "drained"]


def test_opening_twice_leaves_the_first_alone():
    world = World()
    world.open(A, SRC, DST)
    world.open(A, SRC, DST)
    world.commit(A, SRC)
    world.run(0.5)
    assert world.said_of(A) == ["delivered", "drained"]
    assert world.recorder.counters.internal_errors == 1


def test_waiting_needs_no_turns_when_nothing_runs():
    world = World(rate_bytes_per_s=1e5)
    assert world.engine.patience() is None
    world.open(A, SRC, DST)
    assert world.engine.patience() is None
    world.commit(A, SRC)
    world.engine.turn()
    assert 0 < world.engine.patience() <= 0.002
    world.run(2.0)
    assert world.engine.patience() is None


def test_a_link_is_forgotten_after_a_while():
    world = World()
    world.whole(A, SRC, DST)
    world.run(0.5)
    assert [link.session for link in world.engine.snapshot().links] == ["s1"]
    world.run(700.0, step=50.0)
    assert world.engine.snapshot().links == ()


def test_gauges_are_published():
    world = World(rate_bytes_per_s=3e3)
    world.whole(A, SRC, DST)
    world.run(2.5)
    assert world.sink.value(catalog.IN_FLIGHT_BYTES) > 0
    assert world.sink.value(catalog.QUEUED_BYTES) > 0
    assert world.sink.value(catalog.LINK_RATE) == pytest.approx(3e3, rel=0.5)
    while world.engine.busy:
        world.run(0.01)
    # Nothing wakes the agent from here on.
    assert world.sink.value(catalog.IN_FLIGHT_BYTES) == 0
    assert world.sink.value(catalog.QUEUED_BYTES) == 0


def test_a_transport_that_raises_anything_fails_the_request_and_leaks_no_write(monkeypatch):
    world = World(latency_s=0.2)
    submit = world.transport.submit

    def once_then_raise(*blocks):
        monkeypatch.setattr(world.transport, "submit", raising)
        return submit(*blocks)

    def raising(*blocks):
        raise RuntimeError("engine bug")

    monkeypatch.setattr(world.transport, "submit", once_then_raise)
    world.whole(A, SRC, DST)
    world.run(1.0)
    assert world.said_of(A) == [FailureKind.WRITE_FAILED, "drained"]
    assert not world.engine.busy
