"""Which hosts there are, which networks join them and how fast each port is; plain values.

A network is one switch. A port is one host's cable to it, and a shape limits that cable in both
directions. A host with ports in two networks has an address in each.
"""

import ipaddress
import re
from dataclasses import dataclass

DATA = "data"
CONTROL = "control"

# Interface names inside the namespaces are made of these; the kernel allows 15 characters.
_NAME = re.compile(r"^[a-z][a-z0-9]{0,9}$")
_MIN_BURST_BYTES = 16 << 10
_BURST_S = 0.002
_PRIVATE = ipaddress.ip_network("10.0.0.0/8")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A token bucket.

    queue_s  how long a full queue takes to drain; what does not fit is dropped
    """

    bytes_per_s: float
    queue_s: float = 0.05

    def __post_init__(self) -> None:
        _require(self.bytes_per_s > 0, f"a rate must be above 0, not {self.bytes_per_s} bytes/s")
        _require(self.queue_s > 0, f"a queue must be longer than 0 s, not {self.queue_s}")

    @property
    def burst_bytes(self) -> int:
        """What an idle link lets through at once. More would be link time given away for free."""
        return max(_MIN_BURST_BYTES, round(self.bytes_per_s * _BURST_S))

    @property
    def queue_bytes(self) -> int:
        """Length of the queue, with the bucket."""
        return self.burst_bytes + round(self.bytes_per_s * self.queue_s)


@dataclass(frozen=True, kw_only=True)
class Port:
    """One host's cable to a network. No shape: as fast as the machine."""

    host: str
    address: str
    shape: Shape | None = None

    def __post_init__(self) -> None:
        _require_name("host", self.host)
        try:
            inside = ipaddress.ip_address(self.address) in _PRIVATE
        except ValueError as error:
            raise ValueError(f"host {self.host}: {error}") from error
        _require(inside, f"host {self.host}: address {self.address} is outside {_PRIVATE}")


@dataclass(frozen=True, kw_only=True)
class Network:
    """One switch and its ports; all addresses lie in one /24."""

    name: str
    ports: tuple[Port, ...]

    def __post_init__(self) -> None:
        _require_name("network", self.name)
        _require(self.name != "lo", "network lo: every host's loopback has this name already")
        _require_distinct(f"network {self.name}: host", [port.host for port in self.ports])
        subnets = {ipaddress.ip_network(f"{p.address}/24", strict=False) for p in self.ports}
        _require(len(subnets) <= 1, f"network {self.name}: addresses lie in different /24 networks")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """All networks of one lab."""

    networks: tuple[Network, ...]

    def __post_init__(self) -> None:
        _require(bool(self.networks), "a topology needs a network")
        _require_distinct("network", [network.name for network in self.networks])
        _require_distinct("address", [p.address for n in self.networks for p in n.ports])

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host once, in order of appearance."""
        return tuple(dict.fromkeys(p.host for n in self.networks for p in n.ports))

    def port(self, host: str, network: str) -> Port:
        for candidate in self.networks:
            for port in candidate.ports:
                if (port.host, candidate.name) == (host, network):
                    return port
        raise KeyError(f"host {host} has no port in network {network}")


def one_to_one(link: Shape | None = None) -> Topology:
    """A prefill and a decode host on a measured link, and a client that never uses it.

    The link is prefill's cable to the data network. The client reaches both servers through the
    control network, so prompts and tokens do not queue behind KV. The sender's own cable being
    the bottleneck, its TCP sees a full queue before it drops.
    """
    data = Network(
        name=DATA,
        ports=(
            Port(host="prefill", address="10.77.1.1", shape=link),
            Port(host="decode", address="10.77.1.2"),
        ),
    )
    control = Network(
        name=CONTROL,
        ports=(
            Port(host="prefill", address="10.77.0.1"),
            Port(host="decode", address="10.77.0.2"),
            Port(host="client", address="10.77.0.100"),
        ),
    )
    return Topology(networks=(data, control))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


def _require_name(what: str, name: str) -> None:
    _require(
        _NAME.match(name) is not None,
        f"{what} {name!r}: use 1 to 10 small letters and digits, a letter first",
    )


def _require_distinct(what: str, values: list[str]) -> None:
    for value in values:
        _require(values.count(value) == 1, f"{what} {value} appears twice")
