"""Real servers, one set at a time on this machine, with the fetched model."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from smartgen.client import DualClient
from smartgen.launch import Process, Role, ServeMode, ServerSpec, wait_until_healthy
from smartgen.launch.ports import pick
from smartgen.model import default_folder, fetch


@contextmanager
def one_place_for_servers() -> Iterator[None]:
    """Two pairs would not fit a small machine, and would spoil each other's times."""
    path = Path(tempfile.gettempdir()) / "smartgen_servers.lock"
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def one_pair_at_a_time() -> Iterator[None]:
    """The machine's one place for servers, held for a test."""
    with one_place_for_servers():
        yield


@pytest.fixture(scope="session")
def model() -> Path:
    return fetch(default_folder(os.environ)).folder


class Servers:
    """Starts single servers on free loopback ports and stops whatever is left at the end."""

    def __init__(self, model: Path, logs: Path) -> None:
        self._model, self._logs = model, logs
        self._running: list[Process] = []
        self.bootstrap_port, *_ = pick(1)

    def start(
        self,
        role: Role,
        mode: ServeMode = ServeMode.LAYERWISE,
        *extra: str,
        name: str | None = None,
        model: Path | None = None,
    ) -> tuple[Process, ServerSpec]:
        """One server, not waited for."""
        (port,) = pick(1, taken=[self.bootstrap_port])
        spec = ServerSpec(
            role=role,
            model=model or self._model,
            port=port,
            bootstrap_port=self.bootstrap_port,
            mode=mode,
            extra=extra,
            environment={"OMP_NUM_THREADS": "1"},
        )
        name = name or f"{role.value}-{port}"
        process = Process(
            name,
            spec.argv(),
            log=self._logs / f"{name}.log",
            environment=spec.full_environment(os.environ),
        )
        self._running.append(process)
        return process, spec

    def wait(self, *started: tuple[Process, ServerSpec]) -> None:
        wait_until_healthy({p: f"{spec.url}/health" for p, spec in started}, timeout_s=280)

    def stop(self, process: Process) -> None:
        process.stop()
        self._running.remove(process)

    def stop_all(self) -> None:
        for process in self._running:
            process.ask_to_stop()
        for process in list(self._running):
            self.stop(process)

    def client(self, prefill: ServerSpec, decode: ServerSpec, timeout_s: float = 120) -> DualClient:
        return DualClient(
            prefill_url=prefill.url,
            decode_url=decode.url,
            bootstrap_host=prefill.host,
            bootstrap_port=prefill.bootstrap_port,
            timeout_s=timeout_s,
        )


@pytest.fixture(scope="module")
def machine() -> Iterator[None]:
    """The same for a module."""
    with one_place_for_servers():
        yield


@pytest.fixture(scope="module")
def servers(
    machine: None, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    started = Servers(model, tmp_path_factory.mktemp("logs"))
    try:
        yield started
    finally:
        started.stop_all()
