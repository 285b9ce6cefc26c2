import numpy as np
import pytest
from smartgen.transport import ErrorKind, LoopbackTransport, TransportError


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def buffers():
    return np.arange(100, dtype=np.uint8), np.zeros(100, dtype=np.uint8)


def addresses(buffers, offset=0):
    return buffers[0].ctypes.data + offset, buffers[1].ctypes.data + offset


def test_bytes_move_when_the_write_ends(clock, buffers):
    link = LoopbackTransport(clock=clock, rate_bytes_per_s=100, latency_s=0.5)
    first = link.submit("a", *addresses(buffers), 50)
    second = link.submit("a", *addresses(buffers, 50), 50)
    clock.now = 0.9
    assert link.poll() == []
    clock.now = 1.0
    assert [c.write_id for c in link.poll()] == [first]
    assert (buffers[1][:50] == buffers[0][:50]).all()
    assert not buffers[1][50:].any()
    clock.now = 1.5
    (done,) = link.poll()
    assert (done.write_id, done.ok, done.reason) == (second, True, "")
    assert link.in_flight == 0


def test_an_injected_fault_moves_nothing(clock, buffers):
    link = LoopbackTransport(clock=clock)
    link.fail_next()
    link.submit("a", *addresses(buffers), 100)
    (done,) = link.poll()
    assert not done.ok
    assert not buffers[1].any()


def test_a_stalled_session_waits_and_others_go_on(clock, buffers):
    link = LoopbackTransport(clock=clock)
    link.stall("a")
    link.submit("a", *addresses(buffers), 10)
    other = link.submit("b", *addresses(buffers), 10)
    assert [c.write_id for c in link.poll()] == [other]
    link.resume("a")
    assert len(link.poll()) == 1


def test_a_lost_session_fails_running_writes_and_refuses_new_ones(clock, buffers):
    link = LoopbackTransport(clock=clock)
    link.submit("a", *addresses(buffers), 10)
    link.lose("a")
    assert [c.ok for c in link.poll()] == [False]
    with pytest.raises(TransportError) as caught:
        link.submit("a", *addresses(buffers), 10)
    assert caught.value.kind is ErrorKind.UNREACHABLE


def test_ids_are_never_zero_and_closed_means_closed(clock, buffers):
    link = LoopbackTransport(clock=clock)
    assert link.submit("a", *addresses(buffers), 1) != 0
    link.close()
    assert link.poll() == []
    with pytest.raises(TransportError, match="closed"):
        link.submit("a", *addresses(buffers), 1)
