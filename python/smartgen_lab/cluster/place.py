"""Where a server runs: addresses, port, and what goes before its command."""

from dataclasses import dataclass

from smartgen.launch.ports import pick

from smartgen_lab.netns import CONTROL, DATA, Lab

_LOOPBACK = "127.0.0.1"
_PORT, _BOOTSTRAP_PORT = 30000, 8998


@dataclass(frozen=True, kw_only=True)
class Place:
    """
    address       where the client reaches it
    data_address  where its KV arrives and leaves
    """

    address: str
    data_address: str
    port: int
    bootstrap_port: int
    prefix: tuple[str, ...] = ()


def local_place() -> Place:
    """On this machine's loopback, without a network in between."""
    port, bootstrap_port = pick(2)
    return Place(
        address=_LOOPBACK, data_address=_LOOPBACK, port=port, bootstrap_port=bootstrap_port
    )


def local_places() -> tuple[Place, Place]:
    """Prefill and decode on this machine."""
    ports = pick(3)
    prefill, decode = (
        Place(address=_LOOPBACK, data_address=_LOOPBACK, port=port, bootstrap_port=ports[2])
        for port in ports[:2]
    )
    return prefill, decode


def lab_places(lab: Lab) -> tuple[Place, Place]:
    """Prefill and decode on the hosts of that name."""
    prefill, decode = (
        Place(
            address=lab.address(host, CONTROL),
            data_address=lab.address(host, DATA),
            port=_PORT,
            bootstrap_port=_BOOTSTRAP_PORT,
            prefix=lab.prefix(host),
        )
        for host in ("prefill", "decode")
    )
    return prefill, decode
