"""Table tests of the receiver."""

import pytest
from smartgen.core import Mode, RequestKey, Run
from smartgen.transfer import (
    DeliveredNote,
    Failed,
    FallbackNote,
    IllegalEvent,
    LandedNote,
    ReceiverMachine,
    Receiving,
    Released,
    Succeeded,
)
from smartgen.transfer.receiver import NEXT


def receiver(mode=Mode.LAYERWISE, layers=2, total_pages=3):
    return ReceiverMachine(
        key=RequestKey(7, 1), at=0.0, layers=layers, total_pages=total_pages, mode=mode
    )


def landed(layer, start, stop, at=1.0):
    return LandedNote(at, layer=layer, runs=(Run(start, stop),))


def play(machine, *events):
    for event in events:
        machine.step(event)
        machine.check()
    return machine


SUCCESS = Succeeded(5.0)


@pytest.mark.parametrize(
    ("mode", "events", "ready"),
    [
        (Mode.LAYERWISE, [], False),
        (Mode.LAYERWISE, [SUCCESS], False),
        (Mode.LAYERWISE, [landed(0, 0, 3), landed(1, 0, 3)], False),
        (Mode.LAYERWISE, [landed(0, 0, 3), landed(1, 0, 3), SUCCESS], True),
        (Mode.LAYERWISE, [SUCCESS, landed(1, 0, 3), landed(0, 0, 3)], True),
        (Mode.LAYERWISE, [landed(0, 0, 3), landed(1, 0, 2), SUCCESS], False),
        (Mode.LAYERWISE, [landed(0, 0, 3), landed(0, 0, 3), SUCCESS], False),
        (Mode.LAYERWISE, [SUCCESS, FallbackNote(6.0, reason="x")], True),
        (Mode.LAYERWISE, [FallbackNote(4.0, reason="x"), SUCCESS], True),
        (Mode.LAYERWISE, [FallbackNote(4.0, reason="x")], False),
        (Mode.FULL, [SUCCESS], True),
        (Mode.FULL, [], False),
        (Mode.FULL, [SUCCESS, Failed(6.0, reason="x")], False),
    ],
)
def test_when_a_request_may_start(mode, events, ready):
    assert play(receiver(mode), *events).ready is ready


def test_a_request_without_pages_needs_success_alone():
    assert play(receiver(total_pages=0), SUCCESS).ready


def test_doubled_notes_are_counted():
    machine = play(receiver(), landed(0, 0, 3), landed(0, 1, 2), SUCCESS, SUCCESS)
    assert machine.late_events == 2
    assert machine.missing == 3


def test_the_wait_for_pages_has_a_beginning():
    machine = play(receiver(), SUCCESS)
    assert machine.waiting_since == 5.0
    play(machine, landed(0, 0, 3), landed(1, 0, 3, at=6.0))
    assert machine.waiting_since is None
    assert machine.report().ready_after_s == 6.0


@pytest.mark.parametrize("note", [landed(2, 0, 1), landed(0, 2, 4), landed(0, 3, 2)])
def test_pages_outside_the_request_are_refused_as_a_whole(note):
    machine = receiver()
    mixed = LandedNote(1.0, layer=note.layer, runs=(Run(0, 1), *note.runs))
    with pytest.raises(IllegalEvent, match="outside"):
        machine.step(mixed)
    machine.check()
    assert machine.missing == 6


def test_the_report_says_how_it_went():
    note = DeliveredNote(4.0, total_bytes=99, transfer_s=0.5, resent_bytes=3)
    report = play(receiver(), landed(0, 0, 2), note, Failed(6.0, reason="gone")).report()
    assert report.state is Receiving.FAILED
    assert report.failure == "gone"
    assert (report.resident, report.total_bytes, report.resent_bytes) == (2, 99, 3)
    assert report.ready_after_s is None


def test_after_release_nothing_counts():
    machine = play(receiver(Mode.FULL), Released(1.0), SUCCESS, landed(0, 0, 1))
    assert machine.state is Receiving.CLOSED
    assert machine.late_events == 2


def test_the_first_failure_stays():
    machine = play(receiver(), Failed(1.0, reason="one"), Failed(2.0, reason="two"), SUCCESS)
    assert machine.failure == "one"
    assert machine.state is Receiving.FAILED


def test_selective_is_not_here_yet():
    with pytest.raises(ValueError, match="not in this release"):
        receiver(Mode.SELECTIVE)


def test_every_state_but_closed_has_a_way_out():
    assert set(NEXT) == set(Receiving)
    assert {state for state in Receiving if not NEXT[state]} == {Receiving.CLOSED}
