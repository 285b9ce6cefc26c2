"""The pacer against a model of a link: one queue of a fixed rate behind a fixed delay."""

from collections import deque

import pytest
from smartgen.transfer import Pacer, Pacing

KIB, MIB = 1024, 1024 * 1024


def run_link(pacer, *, rate, delay=0.0, seconds=3.0, poll=None, page=12_288):
    """Keep the link as busy as the pacer allows; returns bytes delivered per second."""
    now, free_at, sent = 0.0, 0.0, 0
    flying = deque()
    while now < seconds:
        while flying and flying[0][0] <= now:
            _, launched, nbytes = flying.popleft()
            pacer.settled(now, nbytes=nbytes, descriptors=2, latency_s=now - launched, ok=True)
            sent += nbytes
        pacer.polled(now)
        while True:
            nbytes, _ = pacer.allowance()
            if nbytes == 0:
                break
            nbytes = max(page, nbytes // page * page)
            free_at = max(free_at, now) + nbytes / rate
            flying.append((free_at + delay, now, nbytes))
            pacer.launched(now, nbytes=nbytes, descriptors=2)
        pacer.check()
        now += pacer.poll_interval_s if poll is None else poll
    return sent / seconds


@pytest.mark.parametrize("rate", [2.5e6, 12e6, 120e6, 1.2e9])
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01])
def test_a_link_is_kept_busy(rate, delay):
    pacer = Pacer()
    assert run_link(pacer, rate=rate, delay=delay) > 0.9 * rate
    assert pacer.rate_bytes_per_s == pytest.approx(rate, rel=0.35)


def test_late_polls_widen_the_window():
    pacer = Pacer()
    assert run_link(pacer, rate=120e6, poll=0.02) > 0.9 * 120e6


@pytest.mark.parametrize("rate", [12e6, 120e6])
def test_without_delay_little_is_in_flight(rate):
    pacer = Pacer()
    run_link(pacer, rate=rate)
    assert pacer.window_bytes <= 5 * 0.01 * rate


def test_a_queue_of_our_own_is_not_taken_for_a_long_way():
    pacer = Pacer()
    run_link(pacer, rate=12e6, seconds=25.0)
    assert pacer.round_trip_s < 0.04


def test_the_first_writes_are_two_chunks():
    pacer = Pacer(Pacing(initial_chunk_bytes=100 * KIB))
    launched = 0
    while (nbytes := pacer.allowance()[0]) > 0:
        pacer.launched(0.0, nbytes=nbytes, descriptors=1)
        launched += 1
    assert launched == 2
    assert pacer.in_flight_bytes == 200 * KIB


def test_descriptors_are_capped_and_not_given_out_in_crumbs():
    pacer = Pacer(Pacing(max_descriptors=80))
    pacer.launched(0.0, nbytes=10, descriptors=71)
    assert pacer.allowance() == (0, 0)
    pacer.settled(0.1, nbytes=10, descriptors=71, latency_s=0.1, ok=True)
    assert pacer.allowance() == (256 * KIB, 80)


def test_a_page_larger_than_the_window_still_goes():
    pacer = Pacer()
    pacer.launched(0.0, nbytes=100 * MIB, descriptors=1)
    assert pacer.allowance() == (0, 0)
    pacer.settled(1.0, nbytes=100 * MIB, descriptors=1, latency_s=1.0, ok=True)
    assert pacer.allowance()[0] > 0


def test_failed_writes_teach_nothing():
    pacer = Pacer()
    pacer.launched(0.0, nbytes=MIB, descriptors=1)
    pacer.settled(1.0, nbytes=MIB, descriptors=1, latency_s=1.0, ok=False)
    assert pacer.rate_bytes_per_s is None
    assert pacer.in_flight_bytes == 0


def test_poll_intervals_follow_the_link_within_bounds():
    slow, fast = Pacer(), Pacer()
    run_link(slow, rate=2e6)
    run_link(fast, rate=3e9, seconds=0.5)
    assert slow.poll_interval_s == slow.pacing.max_poll_s
    assert fast.poll_interval_s < 0.001


@pytest.mark.parametrize(
    "wrong",
    [
        {"chunk_time_s": 0},
        {"min_chunk_bytes": 0},
        {"initial_chunk_bytes": 2 * MIB},
        {"max_window_bytes": MIB},
        {"min_poll_s": 0},
        {"max_descriptors": 1},
    ],
)
def test_impossible_pacing_is_refused(wrong):
    with pytest.raises(ValueError, match="pacing"):
        Pacing(**wrong)
