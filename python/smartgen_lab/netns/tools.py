"""Runs `ip` and `tc`, and steps into a namespace with the calling thread."""

import array
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from smartgen_lab.netns.errors import LabError

NETNS_FOLDER = "/run/netns"
_TIMEOUT_S = 30.0
_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL = 0x8946
# Set-commands of the kernel's ethtool interface; a value of 0 turns the feature off.
_OFFLOADS_OFF = {"tso": 0x0000001F, "gso": 0x00000024, "gro": 0x0000002C}


def require_tools() -> None:
    """Raises LabError where this process may not make namespaces or lacks the programs."""
    if os.geteuid() != 0:
        raise LabError(
            "the lab makes network namespaces and shapes links, which needs root: run it with sudo"
        )
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise LabError(
                f"the lab needs the program {program!r}; install iproute2: apt-get install iproute2"
            )


def run(*command: str) -> str:
    """The command's standard output. Raises LabError with what it complained about, or if it hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` did not end within {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise LabError(f"`{' '.join(command)}` failed: {reason}")
    return done.stdout


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread, and threads and processes it starts meanwhile, live in `namespace`."""
    with open("/proc/thread-self/ns/net") as before, open(f"{NETNS_FOLDER}/{namespace}") as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(before.fileno())


def turn_offloads_off(device: str) -> None:
    """Packets leave as they go over a real wire, one MTU each. In the caller's namespace.

    Without this a token bucket sees 64 KiB bursts. The kernel is asked directly, so that the lab
    does not need the program `ethtool`.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, command in _OFFLOADS_OFF.items():
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            try:
                fcntl.ioctl(control, _SIOCETHTOOL, request)
            except OSError as error:
                raise LabError(f"cannot turn {name} off on {device}: {error.strerror}") from error


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        raise LabError(f"cannot enter a network namespace: {os.strerror(ctypes.get_errno())}")
