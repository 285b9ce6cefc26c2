"""Table tests of the sender: one situation, one event, the commands it must give."""

import numpy as np
import pytest
from smartgen.core import Path, Run
from smartgen.transfer import (
    Aborted,
    Acked,
    AuxReady,
    Broken,
    ChunkCommitted,
    DropQueued,
    Enqueue,
    Granted,
    IllegalEvent,
    LayerWritten,
    Outcome,
    ReportDelivered,
    ReportDrained,
    ReportFailed,
    Sending,
    SendLanded,
    Span,
    Write,
    WriteFailed,
)
from smartgen.transfer.sender import ACCEPTS, NEXT

PAGE = 30  # bytes of one page of one layer, K and V


def pages(*numbers):
    return np.array(numbers, dtype=np.int32)


def written(layer, start, *numbers, at=1.0):
    return LayerWritten(at, layer=layer, start=start, src_pages=pages(*numbers))


def committed(start, *numbers, last=False, at=2.0):
    return ChunkCommitted(at, start=start, src_pages=pages(*numbers), last=last)


def span(layer, start, stop):
    return Span(Path.LAYERWISE, layer, Run(start, stop), PAGE)


def step(machine, event):
    commands = machine.step(event)
    machine.check()
    return commands


def grant(machine, layer, start, stop, at=3.0):
    (write,) = step(machine, Granted(at, span=span(layer, start, stop)))
    assert isinstance(write, Write)
    return write


@pytest.fixture
def sender(make_sender):
    """Three destination pages: 5, 6 and 9."""
    return make_sender([5, 6, 9])


@pytest.fixture
def granted(sender):
    """Everything committed and in flight, one write per layer: ids 1 and 2."""
    step(sender, committed(0, 1, 2, 3, last=True))
    for layer in range(2):
        grant(sender, layer, 0, 3)
    return sender


def test_a_written_layer_is_queued_at_once(sender):
    assert step(sender, written(1, 0, 1, 2)) == [Enqueue(spans=(span(1, 0, 2),))]


def test_a_commit_queues_what_was_not_announced(sender):
    step(sender, written(0, 0, 1, 2))
    assert step(sender, committed(0, 1, 2, 3, last=True)) == [
        Enqueue(spans=(span(0, 2, 3),)),
        Enqueue(spans=(span(1, 0, 3),)),
    ]
    assert sender.state is Sending.COMMITTED


def test_a_grant_becomes_one_descriptor_per_contiguous_piece_and_entry(sender):
    step(sender, written(1, 0, 1, 2, 3))
    write = grant(sender, 1, 0, 3)
    assert write.nbytes == 3 * PAGE
    assert write.path is Path.LAYERWISE
    assert write.blocks == (
        (2_000 + 10, 20_000 + 50, 20),
        (2_000 + 30, 20_000 + 90, 10),
        (4_000 + 20, 40_000 + 100, 40),
        (4_000 + 60, 40_000 + 180, 20),
    )


def test_nothing_is_told_before_the_commit(sender):
    step(sender, written(0, 0, 1, 2))
    write = grant(sender, 0, 0, 2)
    assert step(sender, Acked(3.0, write_id=write.write_id)) == []
    assert step(sender, committed(0, 1, 2, at=4.0)) == [
        SendLanded(layer=0, runs=(Run(0, 2),)),
        Enqueue(spans=(span(1, 0, 2),)),
    ]


def test_after_the_commit_an_acknowledgement_is_told_at_once(granted):
    assert step(granted, Acked(4.0, write_id=2)) == [SendLanded(layer=1, runs=(Run(0, 3),))]


def test_a_queued_page_that_was_replaced_is_read_from_the_new_page(sender):
    step(sender, written(0, 0, 1, 2))
    step(sender, committed(0, 1, 7))
    write = grant(sender, 0, 0, 2)
    assert write.blocks[:2] == ((1_000 + 10, 10_000 + 50, 10), (1_000 + 70, 10_000 + 60, 10))


def test_a_page_replaced_in_flight_is_sent_again_after_the_write_is_over(sender):
    step(sender, written(0, 0, 1, 2, 3))
    write = grant(sender, 0, 0, 3)
    step(sender, committed(0, 1, 7, 3, last=True, at=4.0))
    assert step(sender, Acked(5.0, write_id=write.write_id)) == [
        SendLanded(layer=0, runs=(Run(0, 1), Run(2, 3))),
        Enqueue(spans=(span(0, 1, 2),)),
    ]
    again = grant(sender, 0, 1, 2)
    assert again.blocks[0] == (1_000 + 70, 10_000 + 60, 10)
    assert step(sender, Acked(6.0, write_id=again.write_id)) == [
        SendLanded(layer=0, runs=(Run(1, 2),))
    ]


@pytest.mark.parametrize(("acked_at", "resent"), [(3.9, False), (4.0, True), (4.5, True)])
def test_a_write_over_before_the_commit_stands_even_if_its_page_was_replaced(
    sender, acked_at, resent
):
    """The commit is stamped by the host, before the agent sees it: 4.0 may come after 4.5."""
    step(sender, written(0, 0, 1))
    write = grant(sender, 0, 0, 1)
    step(sender, Acked(acked_at, write_id=write.write_id))
    commands = step(sender, committed(0, 8, at=4.0))
    queued = Enqueue(spans=(span(0, 0, 1),)) in commands
    told = SendLanded(layer=0, runs=(Run(0, 1),)) in commands
    assert (queued, told) == (resent, not resent)


def test_aux_is_written_after_the_last_acknowledgement(granted):
    blocks = ((1, 2, 3), (4, 5, 6))
    assert step(granted, AuxReady(3.0, writes=blocks)) == []
    step(granted, Acked(4.0, write_id=1))
    commands = step(granted, Acked(5.0, write_id=2))
    assert commands[1:] == [Write(write_id=3, path=Path.AUX, blocks=blocks, nbytes=9)]
    delivered, drained = step(granted, Acked(6.5, write_id=3))
    assert drained == ReportDrained()
    assert isinstance(delivered, ReportDelivered)
    report = delivered.report
    assert report.bytes_by_path == ((Path.LAYERWISE, 6 * PAGE), (Path.AUX, 9))
    assert report.transfer_s == 3.5
    assert report.tail_s == 4.5
    assert (report.writes, report.resent_bytes, report.overlapped_bytes) == (3, 0, 0)
    assert granted.outcome is Outcome.DELIVERED


def test_aux_may_become_ready_after_all_kv(granted):
    step(granted, Acked(4.0, write_id=1))
    step(granted, Acked(5.0, write_id=2))
    assert isinstance(step(granted, AuxReady(6.0, writes=((1, 2, 3),)))[0], Write)


def test_no_aux_means_delivered(granted):
    step(granted, Acked(4.0, write_id=1))
    step(granted, Acked(5.0, write_id=2))
    assert isinstance(step(granted, AuxReady(6.0, writes=()))[0], ReportDelivered)


def test_a_request_without_pages_is_aux_alone(make_sender):
    sender = make_sender([])
    assert step(sender, committed(0, last=True)) == []
    assert isinstance(step(sender, AuxReady(3.0, writes=((1, 2, 3),)))[0], Write)
    assert isinstance(step(sender, Acked(4.0, write_id=1))[0], ReportDelivered)


def test_overlapped_bytes_are_those_acknowledged_before_the_last_commit(sender):
    step(sender, written(0, 0, 1, 2, 3))
    write = grant(sender, 0, 0, 3)
    step(sender, Acked(3.0, write_id=write.write_id))
    step(sender, committed(0, 1, 2, 3, last=True, at=4.0))
    other = grant(sender, 1, 0, 3)
    step(sender, Acked(5.0, write_id=other.write_id))
    delivered, _ = step(sender, AuxReady(6.0, writes=()))
    assert delivered.report.overlapped_bytes == 3 * PAGE
    assert delivered.report.tail_s == 1.0


def test_abort_empties_the_queue_and_waits_for_running_writes(granted):
    assert step(granted, Aborted(4.0, reason="client left")) == [DropQueued()]
    assert step(granted, Acked(5.0, write_id=1)) == []
    assert step(granted, WriteFailed(6.0, write_id=2, reason="x")) == [ReportDrained()]
    assert granted.outcome is Outcome.ABORTED


def test_abort_with_nothing_in_flight_is_drained_at_once(sender):
    step(sender, written(0, 0, 1))
    assert step(sender, Aborted(4.0, reason="x")) == [DropQueued(), ReportDrained()]


@pytest.mark.parametrize(
    "event", [WriteFailed(4.0, write_id=1, reason="why"), Broken(4.0, reason="why")]
)
def test_a_failure_is_reported_before_it_is_drained(granted, event):
    commands = step(granted, event)
    assert commands == [DropQueued(), ReportFailed(reason="why")]
    for write_id in (1, 2):
        commands += step(granted, Acked(5.0, write_id=write_id))
    assert commands[2:] == [ReportDrained()]
    assert granted.outcome is Outcome.FAILED


def test_only_the_first_failure_is_reported(granted):
    step(granted, Broken(4.0, reason="first"))
    assert step(granted, Broken(5.0, reason="second")) == []
    assert step(granted, Aborted(5.0, reason="third")) == []
    assert granted.late_events == 2


@pytest.mark.parametrize("event", [Acked(9.0, write_id=1), WriteFailed(9.0, write_id=1, reason="")])
def test_doubled_and_unknown_answers_change_nothing(granted, event):
    step(granted, Acked(4.0, write_id=1))
    state, resident = granted.state, granted.resident
    assert step(granted, event) == []
    assert step(granted, Acked(9.0, write_id=99)) == []
    assert (granted.state, granted.resident, granted.late_events) == (state, resident, 2)


def test_after_the_end_everything_is_late(sender):
    step(sender, Aborted(1.0, reason="x"))
    for event in (
        written(0, 0, 1),
        committed(0, 1),
        AuxReady(1.0, writes=()),
        Granted(1.0, span=span(0, 0, 1)),
        Acked(1.0, write_id=1),
        Broken(1.0, reason="y"),
    ):
        assert step(sender, event) == []
    assert sender.late_events == 6


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (written(2, 0, 1), "outside"),
        (written(0, 2, 1, 2), "2..4 of 3"),
        (written(0, -1, 1), "-1..0 of 3"),
        (written(0, 0, 1), "page 0 is QUEUED"),
        (written(1, 0, 9), "other pages than before"),
        (committed(1, 2), "do not follow 0"),
        (committed(0, 1, 2, 3, 4), "pass 3"),
        (committed(0, 1, 2, last=True), "ends at 2 of 3"),
        (AuxReady(2.0, writes=()), "only .*ChunkCommitted"),
        (Granted(2.0, span=span(0, 1, 2)), "page 1 is ABSENT"),
    ],
)
def test_a_forbidden_event_raises_changes_nothing_and_tells_the_story(sender, event, why):
    step(sender, written(0, 0, 1))
    with pytest.raises(IllegalEvent, match=why) as caught:
        sender.step(event)
    assert "LayerWritten -> streaming" in str(caught.value)
    assert "request 7/1" in str(caught.value)
    sender.check()
    commands = step(sender, committed(0, 1, 2, 3, last=True))
    assert commands == [
        Enqueue(spans=(span(0, 1, 3),)),
        Enqueue(spans=(span(1, 0, 3),)),
    ]


def test_aux_is_announced_once(granted):
    step(granted, AuxReady(3.0, writes=()))
    with pytest.raises(IllegalEvent, match="announced before"):
        granted.step(AuxReady(3.0, writes=()))


def test_entries_of_both_sides_must_fit_the_geometry(make_sender, geometry):
    from smartgen.core import Destination, RequestKey
    from smartgen.transfer import SenderMachine

    destination = Destination(session="d", endpoint=("d", 1), entries=(1, 2), pages=pages(1))
    with pytest.raises(ValueError, match="2 destination entries, the geometry has 4"):
        SenderMachine(
            key=RequestKey(1, 1),
            geometry=geometry,
            src_entries=(1, 2, 3, 4),
            destination=destination,
        )


def test_the_story_is_bounded(sender):
    for _ in range(500):
        with pytest.raises(IllegalEvent):
            sender.step(committed(2, 1))
    for position in range(3):
        step(sender, written(0, position, position + 1))
    assert len(sender.story) <= 64


def test_tables_cover_every_state_and_closed_is_the_end():
    assert set(ACCEPTS) == set(NEXT) == set(Sending)
    assert not ACCEPTS[Sending.CLOSED]
    assert not NEXT[Sending.CLOSED]
    for state in set(Sending) - {Sending.CLOSED}:
        assert NEXT[state], f"no way out of {state}"
