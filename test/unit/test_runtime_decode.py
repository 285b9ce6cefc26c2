"""The decode agent: fed with bytes, asked by the host."""

import threading

import pytest
from smartgen.core import Mode, RequestKey, Run
from smartgen.metrics import MemorySink, catalog
from smartgen.runtime import DecodeAgent, FailureKind
from smartgen.wire import Close, Delivered, Fallback, Hello, Landed, Open, pack

KEY = RequestKey(5, 2)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sink():
    return MemorySink()


@pytest.fixture
def agent(clock, sink):
    agent = DecodeAgent(layers=2, clock=clock, sink=sink, incomplete_grace_s=10.0, debug=True)
    agent.open(KEY, total_pages=3, mode=Mode.LAYERWISE)
    return agent


def all_landed():
    return [Landed.of(KEY, layer, (Run(0, 3),)) for layer in range(2)]


def delivered():
    return Delivered.of(KEY, bytes_by_path=(), transfer_us=1500, total_pages=3, resent_bytes=0)


def test_ready_needs_pages_and_success(agent):
    assert agent.on_message(pack(all_landed()))
    assert not agent.ready(KEY)
    assert agent.on_message(pack([delivered()]))
    agent.succeeded(KEY)
    agent.succeeded(KEY)
    assert agent.ready(KEY)
    assert agent.failure(KEY) is None
    report = agent.close(KEY)
    assert report.transfer_s == 0.0015
    assert agent.close(KEY) is None
    assert not agent.ready(KEY)
    assert agent.report(KEY) is None


def test_messages_of_others_are_left_alone(agent):
    assert not agent.on_message([b"17", b"4", b"0"])
    assert not agent.on_message([])


@pytest.mark.parametrize("frames", [[b"SMARTGEN", b"junk"], [b"SMARTGEN", b""], [b"SMARTGEN"] * 99])
def test_malformed_messages_are_consumed_counted_and_logged_once(agent, sink, caplog, frames):
    for _ in range(3):
        assert agent.on_message(frames)
    assert sink.value(catalog.MALFORMED) == agent.snapshot().counters.malformed == 3
    assert len(caplog.records) == 1
    assert agent.failure(KEY) is None


def test_pages_that_do_not_exist_fail_the_request(agent, sink):
    agent.on_message(pack([Landed.of(KEY, 0, (Run(0, 4),))]))
    assert agent.failure(KEY).kind is FailureKind.INCOMPLETE
    assert sink.value(catalog.MALFORMED) == 1


def test_success_without_pages_fails_after_a_grace(agent, clock):
    agent.succeeded(KEY)
    clock.now = 9.0
    assert agent.failure(KEY) is None
    clock.now = 10.5
    assert not agent.ready(KEY)
    failure = agent.failure(KEY)
    assert failure.kind is FailureKind.INCOMPLETE
    assert "6 pages of layers" in str(failure)


def test_pages_in_time_end_the_grace(agent, clock):
    agent.succeeded(KEY)
    clock.now = 9.0
    agent.on_message(pack(all_landed()))
    clock.now = 99.0
    assert agent.ready(KEY)


@pytest.mark.parametrize("by_message", [True, False])
def test_a_fallback_needs_success_alone(agent, sink, by_message):
    if by_message:
        agent.on_message(pack([Fallback.of(KEY, "short_prompt: 12 tokens")]))
    else:
        agent.fallback(KEY, "short_prompt: 12 tokens")
    agent.succeeded(KEY)
    assert agent.ready(KEY)
    assert sink.value(catalog.FALLBACKS, reason="short_prompt") == 1


def test_a_close_by_the_peer_is_a_failure(agent):
    agent.on_message(pack([Close.of(KEY, "prefill aborted")]))
    assert str(agent.failure(KEY)) == "peer_closed: prefill aborted"


def test_the_first_failure_is_kept_and_counted_once(agent, sink):
    agent.failed(KEY, "one")
    agent.failed(KEY, "two")
    assert agent.failure(KEY).detail == "one"
    assert sink.value(catalog.FAILURES, reason="host") == 1


def test_strangers_and_latecomers_are_only_counted(agent):
    other = RequestKey(5, 3)
    hello = Hello("0", 1, "full", 1, "m", "d", 1, (1, 1))
    messages = [Landed.of(other, 0, (Run(0, 1),)), Close.of(other, "x"), hello]
    assert agent.on_message(pack([*messages, Open.of(other, Mode.FULL, 1)]))
    agent.succeeded(other)
    agent.failed(other, "x")
    assert agent.snapshot().counters.stray == 6
    assert agent.failure(KEY) is None


def test_a_key_is_open_once(agent):
    with pytest.raises(ValueError, match="open already"):
        agent.open(KEY, total_pages=1, mode=Mode.FULL)


def test_many_threads_may_ask_while_messages_come(agent):
    landed = [Landed.of(KEY, layer, (Run(p, p + 1),)) for layer in range(2) for p in range(3)]
    seen = []

    def ask():
        while not agent.ready(KEY):
            agent.report(KEY)
            if agent.failure(KEY):
                return
        seen.append(True)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for message in landed:
        agent.on_message(pack([message]))
    agent.succeeded(KEY)
    for thread in threads:
        thread.join(10)
    assert len(seen) == 3
