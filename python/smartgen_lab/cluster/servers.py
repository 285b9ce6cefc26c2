"""Starts servers, waits until they are healthy, gathers their logs and stops them."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from smartgen.client import DualClient
from smartgen.launch import Process, Role, RouterSpec, ServeMode, ServerSpec, wait_until_healthy
from smartgen.launch.ports import pick

from smartgen_lab.cluster.ground import Ground
from smartgen_lab.cluster.place import Place

START_TIMEOUT_S = 300.0
_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}


class Servers:
    """A few servers, and a router in front of them if given, for the time of a `with` block.

    Entered by a thread that can reach them (inside a lab: by one that acts as its client).
    """

    def __init__(self, *specs: ServerSpec, logs: Path, router: RouterSpec | None = None) -> None:
        self.specs = specs
        self.router = router
        self.processes: dict[str, Process] = {}
        self._logs = logs
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            process.ask_to_stop()
        self._stack.close()

    def require_alive(self) -> None:
        """Raises ProcessDied with the end of its log for the first process that has ended."""
        for process in self.processes.values():
            process.require_alive()

    def _start(self, stack: ExitStack) -> None:
        health = {self._launch(spec, stack): spec.url + "/health" for spec in self.specs}
        wait_until_healthy(health, timeout_s=START_TIMEOUT_S)
        if self.router is not None:
            process = self._launch(self.router, stack)
            wait_until_healthy({process: self.router.url + "/readiness"}, timeout_s=60.0)

    def _launch(self, spec: ServerSpec | RouterSpec, stack: ExitStack) -> Process:
        process = Process(
            spec.name,
            spec.argv(),
            log=self._logs / f"{spec.name}.log",
            environment=spec.full_environment(_without_proxies(os.environ)),
        )
        stack.callback(process.stop)
        self.processes[spec.name] = process
        return process


class PairServers(Servers):
    """A prefill and a decode server."""

    @property
    def prefill(self) -> ServerSpec:
        return self.specs[0]

    @property
    def decode(self) -> ServerSpec:
        return self.specs[1]

    def client(self) -> DualClient:
        return DualClient(
            prefill_url=self.prefill.url,
            decode_url=self.decode.url,
            bootstrap_host=self.prefill.host,
            bootstrap_port=self.prefill.bootstrap_port,
        )


def pair(
    ground: Ground,
    mode: ServeMode,
    places: tuple[Place, Place],
    logs: Path,
    *,
    debug: bool = False,
    prefill_extra: tuple[str, ...] = (),
) -> PairServers:
    """
    debug          servers report checksums of what they hold (SmartGen's modes only)
    prefill_extra  options of the prefill server alone
    """
    prefill, decode = _pair_specs(ground, mode, places, debug)
    prefill = replace(prefill, extra=(*prefill.extra, *prefill_extra))
    return PairServers(prefill, decode, logs=logs)


def routed_pair(
    ground: Ground, mode: ServeMode, places: tuple[Place, Place], logs: Path
) -> PairServers:
    """With SGLang's router in front, on this machine's loopback."""
    prefill, decode = _pair_specs(ground, mode, places, debug=False)
    port, metrics_port = pick(2, taken=(prefill.port, decode.port, prefill.bootstrap_port))
    router = RouterSpec(
        prefills=((prefill.url, prefill.bootstrap_port),),
        decodes=(decode.url,),
        port=port,
        metrics_port=metrics_port,
    )
    return PairServers(prefill, decode, logs=logs, router=router)


def aggregated(ground: Ground, place: Place, logs: Path) -> Servers:
    """One ordinary server that does both."""
    return Servers(_spec(ground, Role.AGGREGATED, ServeMode.STOCK, place), logs=logs)


def _pair_specs(
    ground: Ground, mode: ServeMode, places: tuple[Place, Place], debug: bool
) -> tuple[ServerSpec, ServerSpec]:
    extra = ("--smartgen-debug",) if debug and mode is not ServeMode.STOCK else ()
    roles = (Role.PREFILL, Role.DECODE)
    prefill, decode = (
        _spec(ground, role, mode, place, extra) for role, place in zip(roles, places, strict=True)
    )
    return prefill, decode


def _spec(
    ground: Ground, role: Role, mode: ServeMode, place: Place, extra: tuple[str, ...] = ()
) -> ServerSpec:
    return ServerSpec(
        role=role,
        model=ground.model,
        host=place.address,
        port=place.port,
        bootstrap_port=place.bootstrap_port,
        mode=mode,
        extra=(*ground.options, *extra),
        prefix=place.prefix,
        environment={**ground.environment, "SGLANG_HOST_IP": place.data_address},
    )


def _without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Servers of one measurement talk to each other only."""
    return {name: value for name, value in environment.items() if name.lower() not in _PROXIES}
