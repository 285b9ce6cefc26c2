"""A prefill server, a decode server and a router that live and die together."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from smartgen.launch.process import Process, wait_until_healthy
from smartgen.launch.server import RouterSpec, ServerSpec

ROUTER_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class PairSpec:
    """Everything `Pair` starts. `logs` is a folder; each process writes `<name>.log` there."""

    prefill: ServerSpec
    decode: ServerSpec
    router: RouterSpec
    logs: Path
    start_timeout_s: float = 180.0


class Pair:
    """Use as a context manager: leaving it stops everything, whatever happened inside."""

    def __init__(
        self,
        spec: PairSpec,
        environment: Mapping[str, str],
        on_ready: Callable[[Process], None] = lambda process: None,
    ) -> None:
        self.spec = spec
        self.processes: list[Process] = []
        self._environment = environment
        self._on_ready = on_ready

    def __enter__(self) -> "Pair":
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        # Both servers at once: most of their start is imports, which the second finds cached.
        servers = {
            self._launch(s): s.url + "/health" for s in (self.spec.prefill, self.spec.decode)
        }
        wait_until_healthy(servers, timeout_s=self.spec.start_timeout_s, on_healthy=self._on_ready)
        # The router checks its servers when it starts and would count an unready one as failed.
        router = self._launch(self.spec.router)
        wait_until_healthy(
            {router: self.spec.router.url + "/readiness"},
            timeout_s=ROUTER_START_TIMEOUT_S,
            on_healthy=self._on_ready,
            also_alive=tuple(servers),
        )

    def _launch(self, spec: ServerSpec | RouterSpec) -> Process:
        process = Process(
            spec.name,
            spec.argv(),
            log=self.spec.logs / f"{spec.name}.log",
            environment=spec.full_environment(self._environment),
        )
        self.processes.append(process)
        return process

    def require_alive(self) -> None:
        """Raises ProcessDied for the first process that has ended."""
        for process in self.processes:
            process.require_alive()

    def stop(self) -> None:
        """Returns when every process is gone. Bounded; no further signal interrupts it."""
        with _interrupts_ignored():
            for process in self.processes:
                process.ask_to_stop()
            for process in self.processes:
                process.stop()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
