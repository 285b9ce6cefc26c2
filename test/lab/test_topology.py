"""Shapes and topologies as values: no root needed."""

from typing import Any

import pytest
from smartgen_lab.netns import CONTROL, DATA, Network, Port, Shape, Topology, one_to_one


@pytest.mark.parametrize(
    ("bytes_per_s", "burst"),
    [(1e3, 16 << 10), (2.875e6, 16 << 10), (8.192e6, 16384), (25e6, 50_000), (1.25e9, 2_500_000)],
)
def test_the_burst_is_two_milliseconds_of_the_rate_and_at_least_16_kib(
    bytes_per_s: float, burst: int
) -> None:
    assert Shape(bytes_per_s=bytes_per_s).burst_bytes == burst


def test_the_queue_holds_its_time_at_the_rate_beside_the_bucket() -> None:
    shape = Shape(bytes_per_s=25e6, queue_s=0.05)
    assert shape.queue_bytes == shape.burst_bytes + 1_250_000


@pytest.mark.parametrize(
    "wrong", [{"bytes_per_s": 0}, {"bytes_per_s": -1}, {"bytes_per_s": 1, "queue_s": 0}]
)
def test_a_shape_refuses_what_no_link_can_have(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above 0|longer than 0"):
        Shape(**wrong)


def test_one_to_one_measures_prefills_cable_and_keeps_the_client_off_it() -> None:
    link = Shape(bytes_per_s=1e6)
    topology = one_to_one(link)
    assert topology.hosts == ("prefill", "decode", "client")
    assert topology.port("prefill", DATA).shape == link
    assert topology.port("prefill", CONTROL).shape is None
    with pytest.raises(KeyError):
        topology.port("client", DATA)


def port(**changes: Any) -> Port:
    return Port(**({"host": "a", "address": "10.1.1.1"} | changes))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: port(host="Not a name"), "small letters"),
        (lambda: port(host="muchtoolongname"), "1 to 10"),
        (lambda: port(address="192.168.1.1"), r"outside 10\.0\.0\.0/8"),
        (lambda: port(address="nowhere"), "host a"),
        (lambda: Network(name="data", ports=(port(), port(address="10.1.1.2"))), "host a appears twice"),
        (lambda: Network(name="data", ports=(port(), port(host="b", address="10.1.2.2"))), "different /24"),
        (lambda: Network(name="lo", ports=()), "loopback"),
        (lambda: Topology(networks=()), "needs a network"),
        (
            lambda: Topology(networks=(Network(name="x", ports=()), Network(name="x", ports=()))),
            "network x appears twice",
        ),
        (
            lambda: Topology(networks=(Network(name="x", ports=(port(),)), Network(name="y", ports=(port(),)))),
            "address 10.1.1.1 appears twice",
        ),
    ],
)  # fmt: skip
def test_a_topology_refuses_contradictions(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()
