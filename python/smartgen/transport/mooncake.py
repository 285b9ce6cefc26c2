"""Mooncake's TransferEngine as a Transport, over TCP or RDMA.

Only one-descriptor ids are used (`transfer_submit_write`, `transfer_check_status`), because the
status of a longer batch is that of its first descriptor. An id is a raw pointer inside the engine:
0 means the write was not started and polling it kills the process; so does polling an id after its
final status. Both are kept out here. The engine has no cancel: a failed or late write of a batch
says nothing about the others, so every id is followed to its end.

First contact is a handshake inside the engine's submit call, under one lock for all peers, and has
no limit when the peer's process is stopped. So a peer is first sent a probe, which takes no lock,
from a thread of its own; writes to it wait here until it answered.
"""

import importlib.metadata
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from smartgen.config import provide_variables, replaced_variable
from smartgen.transport.base import Completion, ErrorKind, TransportError

# The defaults wedge a peer for ever after 2,048 outstanding descriptors.
QUEUE_LIMITS: Final[Mapping[str, str]] = {
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
}
# Read by the engine when it is built. The defaults never notice a peer that came back under its old
# name, and wait 30 s for one that stopped. What the user has set stays.
SETTINGS: Final[Mapping[str, str]] = {
    **QUEUE_LIMITS,
    "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS": "2",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "5",
    "MC_LOG_LEVEL": "WARNING",
}
LANES: Final = "MC_TCP_LANES_PER_PEER"
PACKAGES: Final = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine",
)
KNOWN_VERSION: Final = "0.3.13"
# Library to Debian package, as the engine names them in its dynamic section.
SYSTEM_LIBRARIES: Final[Mapping[str, str]] = {
    "libibverbs.so.1": "libibverbs1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
}
MAX_OUTSTANDING: Final = 1000
# Ids of a peer end nearly in the order they were submitted: behind so many running ones, more than
# it has lanes, none is looked at.
RUNNING_SEEN: Final = 32

CONTACT_TIMEOUT_S: Final = 5.0

_DONE, _RUNNING = 1, 0
_construction = threading.Lock()


def rdma_devices(folder: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Names of the RDMA devices that the kernel knows."""
    try:
        return sorted(device.name for device in folder.iterdir())
    except OSError:
        return []


def detect_protocol(devices: Path = Path("/sys/class/infiniband")) -> str:
    """Name the protocol to use: "rdma" where the machine has an RDMA device, else "tcp"."""
    return "rdma" if rdma_devices(devices) else "tcp"


def check_version() -> str:
    """Version of the installed engine. Raises TransportError unless it is KNOWN_VERSION."""
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version == KNOWN_VERSION or version.startswith(f"{KNOWN_VERSION}."):
            return version
        raise TransportError(
            ErrorKind.VERSION,
            package,
            f"run: pip install '{package}=={KNOWN_VERSION}.post1'",
            f"{package} {version} is installed, {KNOWN_VERSION} is needed",
        )
    raise TransportError(
        ErrorKind.LIBRARY,
        "mooncake",
        f"run: pip install '{PACKAGES[0]}=={KNOWN_VERSION}.post1' msgpack "
        f"(with an NVIDIA GPU: '{PACKAGES[1]}=={KNOWN_VERSION}.post1')",
        "Mooncake's transfer engine is not installed",
    )


def apply_settings(protocol: str) -> None:
    """Put SETTINGS, and the choice of TCP, into the environment of this process and its children.

    For hosts that build an engine of their own as well. What the user has set stays.
    """
    provide_variables(SETTINGS)
    if protocol == "tcp":
        provide_variables({"MC_FORCE_TCP": "1"})


def import_failure(error: ImportError) -> TransportError:
    """What an import error of the engine means for the person who starts the server."""
    text = str(error)
    if any(library in text for library in SYSTEM_LIBRARIES):
        return TransportError(
            ErrorKind.LIBRARY,
            "mooncake",
            f"run: apt-get install -y {' '.join(SYSTEM_LIBRARIES.values())}",
            f"Mooncake misses a system library that it needs, over TCP as well ({text})",
        )
    if "libcuda" in text:
        return TransportError(
            ErrorKind.LIBRARY,
            "mooncake",
            f"run: pip install '{PACKAGES[0]}=={KNOWN_VERSION}.post1'",
            "this build of Mooncake needs an NVIDIA driver",
        )
    return TransportError(
        ErrorKind.LIBRARY, "mooncake", "run: python -c 'import mooncake.engine'", text
    )


@dataclass(slots=True, kw_only=True)
class _Contact:
    """A probe under way and the writes that wait for it; `answer` is set by its thread."""

    started_at: float
    answer: int | None = None
    late: bool = False
    waiting: list[tuple[int, int, int, int]] = field(default_factory=list)  # id, src, dst, bytes


class MooncakeTransport:
    """One engine of its own: own connections, own queue, own port.

    host      address of this machine as peers reach it
    protocol  "tcp" or "rdma", see `detect_protocol`
    lanes     TCP connections per peer: 4 keep a line full, 16 suit many small writes
    """

    def __init__(
        self,
        *,
        host: str,
        protocol: str,
        lanes: int = 4,
        device: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if protocol not in ("tcp", "rdma"):
            raise ValueError(f"protocol is {protocol!r}, must be 'tcp' or 'rdma'")
        if not 1 <= lanes <= 16:
            raise ValueError(f"lanes is {lanes}, must be 1 to 16")
        check_version()
        self._engine = _build(host, protocol, lanes, device)
        self.session = f"{host}:{self._engine.get_rpc_port()}"
        self._clock = clock
        self._pending: dict[str, dict[int, int]] = {}  # session -> own id -> engine's id
        self._known: set[str] = set()  # sessions that answered and have not failed since
        self._contacts: dict[str, _Contact] = {}
        self._registered: set[tuple[int, int]] = set()
        self._next_id = 1
        self._closed = False

    def register(self, addr: int, nbytes: int) -> None:
        if (addr, nbytes) in self._registered:
            return
        status = self._engine.register_memory(addr, nbytes)
        if status != 0:
            raise TransportError(
                ErrorKind.SETUP,
                self.session,
                "register each buffer once, and only whole buffers",
                f"registering {nbytes} bytes gave status {status}",
            )
        self._registered.add((addr, nbytes))

    def submit(self, session: str, src_addr: int, dst_addr: int, nbytes: int) -> int:
        if self._closed:
            raise TransportError(ErrorKind.CLOSED, session, "", "the transport is closed")
        contact = self._contacts.get(session)
        outstanding = len(self._pending.get(session, ())) + (len(contact.waiting) if contact else 0)
        if outstanding >= MAX_OUTSTANDING:
            raise TransportError(
                ErrorKind.REJECTED,
                session,
                "lower the window",
                f"{MAX_OUTSTANDING} writes to one peer are outstanding",
            )
        if contact is not None and contact.late:
            if contact.answer is None:
                raise _unreachable(session)
            del self._contacts[session]
            contact = None
        write_id, self._next_id = self._next_id, self._next_id + 1
        if session in self._known:
            self._start(session, write_id, src_addr, dst_addr, nbytes)
            return write_id
        if contact is None:
            contact = self._contacts[session] = self._probe(session)
        contact.waiting.append((write_id, src_addr, dst_addr, nbytes))
        return write_id

    def poll(self) -> list[Completion]:
        completions: list[Completion] = []
        for session, contact in list(self._contacts.items()):
            completions += self._check_contact(session, contact)
        for session in list(self._pending):
            completions += self._check_writes(session)
        return completions

    def close(self) -> None:
        """Stops submitting. The engine itself ends with the object; it cannot be stopped earlier
        while a write runs."""
        self._closed = True
        self._pending.clear()
        self._contacts.clear()

    def _start(self, session: str, write_id: int, src: int, dst: int, nbytes: int) -> None:
        engine_id = self._engine.transfer_submit_write(session, src, dst, nbytes)
        if engine_id in (0, -1):
            self._known.discard(session)
            raise _unreachable(session)
        self._pending.setdefault(session, {})[write_id] = engine_id

    def _probe(self, session: str) -> _Contact:
        contact = _Contact(started_at=self._clock())

        def ask() -> None:
            try:
                contact.answer = self._engine.send_probe(session)
            except Exception:
                contact.answer = -1

        threading.Thread(target=ask, name="smartgen-probe", daemon=True).start()
        return contact

    def _check_writes(self, session: str) -> list[Completion]:
        pending, running, over = self._pending[session], 0, []
        for write_id, engine_id in pending.items():
            status = self._engine.transfer_check_status(engine_id)
            if status == _RUNNING:
                running += 1
                if running == RUNNING_SEEN:
                    break
                continue
            reason = "" if status == _DONE else f"write to {session} ended with {status}"
            over.append(Completion(write_id, status == _DONE, reason))
        for completion in over:
            del pending[completion.write_id]
            if not completion.ok:
                # The next write would shake hands again, and that must not block.
                self._known.discard(session)
        if not pending:
            del self._pending[session]
        return over

    def _check_contact(self, session: str, contact: _Contact) -> list[Completion]:
        if contact.answer is None:
            waited = self._clock() - contact.started_at
            if contact.late or waited < CONTACT_TIMEOUT_S:
                return []
            contact.late = True
        else:
            del self._contacts[session]
            if contact.answer == 0:
                self._known.add(session)
        waiting, contact.waiting = contact.waiting, []
        failed: list[Completion] = []
        for write_id, src, dst, nbytes in waiting:
            try:
                if session not in self._known:
                    raise _unreachable(session)
                self._start(session, write_id, src, dst, nbytes)
            except TransportError as error:
                failed.append(Completion(write_id, False, str(error)))
        return failed


def _unreachable(session: str) -> TransportError:
    return TransportError(
        ErrorKind.UNREACHABLE,
        session,
        "check that the decode server runs and its ports are open",
        f"{session} does not answer",
    )


def _build(host: str, protocol: str, lanes: int, device: str) -> Any:
    apply_settings(protocol)
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise import_failure(error) from error
    # The number of lanes is read while an engine is built, so two engines of one process can
    # differ; the host's own engine must not see ours.
    with _construction, replaced_variable(LANES, str(lanes)):
        engine = TransferEngine()
        status = engine.initialize(host, "P2PHANDSHAKE", protocol, device)
    if status != 0:
        raise TransportError(
            ErrorKind.SETUP,
            host,
            "check the address, and that ports 15000-17000 are not all taken",
            f"the engine did not start on {host} (status {status})",
        )
    return engine
