"""Real namespaces: what is built, that the rate holds, and that nothing ever stays behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from smartgen_lab.netns import (
    CONTROL,
    DATA,
    Lab,
    LabError,
    Shape,
    one_to_one,
    remove_leftovers,
    tools,
)

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("lab_possible")]

Names = Callable[[], set[str]]

# Makes a lab, says so, and waits to be stopped.
HOLDER = """
import sys, time
from smartgen_lab.netns import Lab, one_to_one
with Lab(one_to_one()) as lab:
    print(lab.namespace("prefill"), flush=True)
    time.sleep(60)
"""


def start_holder() -> tuple["subprocess.Popen[str]", str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        return process, output.readline().strip()


def own(names: set[str], pid: int) -> set[str]:
    return {name for name in names if name.startswith(f"smartgenlab-{pid}-")}


def test_every_host_has_loopback_its_addresses_and_no_way_out(lab_namespaces: Names) -> None:
    with Lab(one_to_one()) as lab:
        assert own(lab_namespaces(), os.getpid()) == {
            lab.namespace(host) for host in ("prefill", "decode", "client", "switch")
        }
        seen = tools.run(*lab.prefix("prefill"), "ip", "-brief", "address")
        assert "127.0.0.1/8" in seen
        assert "10.77.1.1/24" in seen
        assert tools.run(*lab.prefix("prefill"), "ip", "route", "show", "default") == ""
    assert own(lab_namespaces(), os.getpid()) == set()


def test_an_exception_inside_removes_everything(lab_namespaces: Names) -> None:
    with pytest.raises(ZeroDivisionError), Lab(one_to_one()):
        1 / 0  # noqa: B018
    assert own(lab_namespaces(), os.getpid()) == set()


def test_leaving_kills_what_still_runs_inside() -> None:
    with Lab(one_to_one()) as lab:
        sleeper = subprocess.Popen([*lab.prefix("decode"), "sleep", "60"])
        time.sleep(0.2)
    assert sleeper.wait(timeout=5) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_run_leaves_nothing(number: signal.Signals, lab_namespaces: Names) -> None:
    process, name = start_holder()
    assert name in lab_namespaces()
    process.send_signal(number)
    assert process.wait(timeout=20) != 0
    assert own(lab_namespaces(), process.pid) == set()


def test_the_next_lab_removes_what_a_killed_run_left_and_spares_a_living_one(
    lab_namespaces: Names,
) -> None:
    crashed, left_behind = start_holder()
    crashed.kill()
    crashed.wait()
    assert left_behind in lab_namespaces()
    living, in_use = start_holder()
    try:
        # The second holder was a "next lab" already.
        assert left_behind not in lab_namespaces()
        assert in_use not in remove_leftovers()
        assert in_use in lab_namespaces()
    finally:
        living.terminate()
        living.wait(timeout=20)


def test_namespaces_of_others_are_never_touched(lab_namespaces: Names) -> None:
    foreign = "smartgenlab-not-ours"
    tools.run("ip", "netns", "add", foreign)
    try:
        remove_leftovers()
        assert foreign in lab_namespaces()
    finally:
        tools.run("ip", "netns", "delete", foreign)


def test_one_lab_per_process() -> None:
    with Lab(one_to_one()), pytest.raises(LabError, match="has a lab already"), Lab(one_to_one()):
        pass


def test_inside_is_left_again() -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with Lab(one_to_one()) as lab, lab.inside("client"):
        assert os.readlink("/proc/thread-self/ns/net") != before
    assert os.readlink("/proc/thread-self/ns/net") == before


def test_a_tool_that_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_TIMEOUT_S", 0.2)
    with pytest.raises(LabError, match="`sleep 9` did not end within"):
        tools.run("sleep", "9")


def test_offloads_are_off_and_both_directions_are_shaped() -> None:
    with Lab(one_to_one(Shape(bytes_per_s=4e6))) as lab:
        for host, device in (("prefill", DATA), ("switch", "prefill.0")):
            shown = tools.run("tc", "-n", lab.namespace(host), "qdisc", "show", "dev", device)
            assert "tbf" in shown
            assert "rate 32Mbit" in shown
        assert not offloaded(lab, "prefill", DATA)
        lab.shape("prefill", DATA, None)
        lab.shape("prefill", DATA, None)
        assert "tbf" not in tools.run("tc", "-n", lab.namespace("prefill"), "qdisc")


@pytest.mark.parametrize(("sender", "receiver"), [("prefill", "decode"), ("decode", "prefill")])
def test_the_rate_holds_in_both_directions(sender: str, receiver: str) -> None:
    rate, size = 8e6, 8_000_000
    with Lab(one_to_one(Shape(bytes_per_s=rate))) as lab:
        before = lab.sent_bytes(sender, DATA)
        seconds = send(lab, sender, receiver, size, DATA)
        assert lab.sent_bytes(sender, DATA) - before >= size
        # Headers take 4.6 %; the bucket and a busy machine give a little either way.
        assert size / rate * 0.98 < seconds < size / rate * 1.35
        assert send(lab, sender, receiver, size, CONTROL) < 0.5 * size / rate


def send(lab: Lab, sender: str, receiver: str, size: int, network: str) -> float:
    """Seconds from the first byte sent to the last one received."""
    with lab.inside(receiver):
        listener = socket.create_server((lab.address(receiver, network), 5001))
    ended: list[float] = []

    def receive() -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(1 << 16):
                pass
        ended.append(time.monotonic())

    thread = threading.Thread(target=receive)
    thread.start()
    with lab.inside(sender):
        connection = socket.create_connection((lab.address(receiver, network), 5001))
    began = time.monotonic()
    with connection:
        connection.sendall(bytes(size))
    thread.join(timeout=30)
    listener.close()
    return ended[0] - began


def offloaded(lab: Lab, host: str, device: str) -> bool:
    """Whether packets longer than the wire allows leave the device."""
    before = statistics(lab, host, device)
    send(lab, host, "decode", 200_000, device)
    sent = statistics(lab, host, device)
    mean = (sent["bytes"] - before["bytes"]) / (sent["packets"] - before["packets"])
    return mean > 1514


def statistics(lab: Lab, host: str, device: str) -> dict[str, int]:
    command = ("ip", "-n", lab.namespace(host), "-s", "-j", "link", "show", "dev", device)
    return dict(json.loads(tools.run(*command))[0]["stats64"]["tx"])
