"""Picks and checks TCP ports on this machine.

Mooncake takes ports in 15000-17000 by itself, so that range is never used here, nor is the
kernel's ephemeral range, from which any outgoing connection could take a port in between.
"""

import errno
import random
import socket
from collections.abc import Iterable, Mapping

from smartgen.launch.errors import CheckFailed

MOONCAKE_PORTS = range(15000, 17001)
_PICK_FROM = range(20000, 32000)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on `host`:`port` now. Raises CheckFailed for a bad host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a connection of the previous run in TIME_WAIT does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise CheckFailed(
                f"cannot listen on {host}: {error.strerror or error}; pass an address of this "
                "machine with --host"
            ) from error
        return True


def pick(count: int, host: str = "127.0.0.1", taken: Iterable[int] = ()) -> list[int]:
    """`count` different free ports. Another process can still take one before it is used."""
    avoid = set(taken)
    candidates = [port for port in _PICK_FROM if port not in avoid]
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            return found
        if is_free(host, port):
            found.append(port)
    raise CheckFailed(f"no {count} free ports in {_PICK_FROM.start}-{_PICK_FROM.stop - 1}")


def require_free(wanted: Mapping[str, tuple[str, int]]) -> None:
    """`wanted`: option to (host, port). Raises CheckFailed for the first that cannot be used."""
    seen: dict[int, str] = {}
    for option, (host, port) in wanted.items():
        if not 1 <= port <= 65535:
            raise CheckFailed(f"{option} {port} is not a port; choose one in 1024-65535")
        if port in seen:
            raise CheckFailed(
                f"{option} and {seen[port]} are both {port}; give each process its own port"
            )
        if port in MOONCAKE_PORTS:
            raise CheckFailed(
                f"{option} {port} lies in {MOONCAKE_PORTS.start}-{MOONCAKE_PORTS.stop - 1}, where "
                "Mooncake picks its own ports; choose one outside"
            )
        if not is_free(host, port):
            raise CheckFailed(
                f"{option} {port} is in use on {host}; stop the process that holds it or choose "
                "another port"
            )
        seen[port] = option
