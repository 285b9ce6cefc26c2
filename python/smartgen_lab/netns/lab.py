"""Makes a topology real for the time of a `with` block.

Each host gets a namespace, and one more, `switch`, holds a bridge per network. A shaped port has
a token bucket at both ends of its cable: the host's end limits what leaves the host, the
switch's end what reaches it.
"""

import json
import logging
import signal
import threading
from contextlib import AbstractContextManager, ExitStack
from types import FrameType, TracebackType

from smartgen_lab.netns import tools
from smartgen_lab.netns.errors import LabError
from smartgen_lab.netns.leftovers import namespaces_of, remove, remove_leftovers, this_process
from smartgen_lab.netns.topology import Network, Port, Shape, Topology

logger = logging.getLogger(__name__)

_SWITCH = "switch"
_STOPPING = (signal.SIGTERM, signal.SIGHUP)


class Lab:
    """One lab per process at a time. Leaving it removes everything, whatever happened inside.

    SIGTERM and SIGHUP end the block like Ctrl-C does, so a stopped run leaves nothing behind; what
    kill -9 leaves, the next lab on this machine removes.
    """

    def __init__(self, topology: Topology) -> None:
        if _SWITCH in topology.hosts:
            raise ValueError(f"host {_SWITCH!r}: the lab needs this name itself")
        self.topology = topology
        self._owner = this_process()
        self._handlers: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> "Lab":
        tools.require_tools()
        for name in remove_leftovers():
            logger.info("removed %s, left by a run that crashed", name)
        if namespaces_of(self._owner):
            raise LabError("this process has a lab already; leave it before making another")
        self._catch_signals()
        try:
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tear_down()

    def namespace(self, host: str) -> str:
        return self._owner.namespace(host)

    def prefix(self, host: str) -> tuple[str, ...]:
        """What to put before a command that shall run on `host`."""
        return ("ip", "netns", "exec", self.namespace(host))

    def inside(self, host: str) -> AbstractContextManager[None]:
        """The calling thread acts as `host` within this block, with all that it starts."""
        return tools.inside(self.namespace(host))

    def address(self, host: str, network: str) -> str:
        return self.topology.port(host, network).address

    def shape(self, host: str, network: str, shape: Shape | None) -> None:
        """Change the port's rate in both directions now; None lifts the limit."""
        self.topology.port(host, network)
        for namespace, device in self._ends(host, network):
            command = ["tc", "-n", self.namespace(namespace), "qdisc"]
            if shape is None:
                if "tbf" in tools.run(*command, "show", "dev", device):
                    tools.run(*command, "delete", "dev", device, "root")
                continue
            tools.run(
                *(*command, "replace", "dev", device, "root", "tbf"),
                *("rate", f"{round(shape.bytes_per_s * 8)}bit"),
                *("burst", str(shape.burst_bytes), "limit", str(shape.queue_bytes)),
            )

    def sent_bytes(self, host: str, network: str) -> int:
        """What the host has sent into the network so far, headers included."""
        command = ("ip", "-n", self.namespace(host), "-s", "-j", "link", "show", "dev", network)
        return int(json.loads(tools.run(*command))[0]["stats64"]["tx"]["bytes"])

    def _build(self) -> None:
        for host in (*self.topology.hosts, _SWITCH):
            name = self.namespace(host)
            tools.run("ip", "netns", "add", name)
            tools.run("ip", "-n", name, "link", "set", "lo", "up")
        for network in self.topology.networks:
            switch = self.namespace(_SWITCH)
            tools.run("ip", "-n", switch, "link", "add", "name", network.name, "type", "bridge")
            tools.run("ip", "-n", switch, "link", "set", network.name, "up")
            for port in network.ports:
                self._plug(network, port)

    def _plug(self, network: Network, port: Port) -> None:
        (host, device), (switch, cable) = self._ends(port.host, network.name)
        host, switch = self.namespace(host), self.namespace(switch)
        tools.run(
            *("ip", "link", "add", "name", device, "netns", host, "type", "veth"),
            *("peer", "name", cable, "netns", switch),
        )
        for namespace, end in ((host, device), (switch, cable)):
            with tools.inside(namespace):
                tools.turn_offloads_off(end)
        tools.run("ip", "-n", switch, "link", "set", cable, "master", network.name)
        tools.run("ip", "-n", host, "address", "add", f"{port.address}/24", "dev", device)
        self.shape(port.host, network.name, port.shape)
        tools.run("ip", "-n", switch, "link", "set", cable, "up")
        tools.run("ip", "-n", host, "link", "set", device, "up")

    def _ends(self, host: str, network: str) -> tuple[tuple[str, str], tuple[str, str]]:
        """(host, device) and (switch, device) of one cable."""
        names = [n.name for n in self.topology.networks]
        return (host, network), (_SWITCH, f"{host}.{names.index(network)}")

    def _tear_down(self) -> None:
        if threading.current_thread() is threading.main_thread():
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            for number in self._handlers:
                signal.signal(number, signal.SIG_IGN)
        try:
            with ExitStack() as stack:
                # One that resists does not keep the others.
                for name in namespaces_of(self._owner):
                    stack.callback(remove, name)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, interrupt)
                for number, handler in self._handlers.items():
                    signal.signal(number, handler)
                self._handlers.clear()

    def _catch_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, _leave) for number in _STOPPING}


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
