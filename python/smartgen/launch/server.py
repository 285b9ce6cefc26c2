"""What an SGLang server or router is started with, as values; no process is started here.

The same values serve `smartgen up` and instruments that run servers elsewhere: `prefix` is put
before the command (`("ip", "netns", "exec", NAME)`), `environment` is laid over the caller's.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from smartgen.transport import QUEUE_LIMITS

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

# SGLang's health check generates a token and answers 503 if none came for this long (its default
# is 20 s). A long prompt on a busy CPU can hold the scheduler longer than that.
HEALTH_CHECK_TIMEOUT_S = 60

# Stock Mooncake over TCP: its default queue limits reject a long prompt's writes. SmartGen's own
# modes set the same in the plugin.
_STOCK_TCP = {
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    **QUEUE_LIMITS,
}


class Role(Enum):
    """What one server does; the value is SGLang's `--disaggregation-mode`."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "null"  # one ordinary server, no transfer


class ServeMode(Enum):
    """How the KV cache travels; STOCK is SGLang's own Mooncake backend without SmartGen."""

    LAYERWISE = "layerwise"
    FULL = "full"
    STOCK = "stock"


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One SGLang server.

    host            address it listens on, and that its peers can reach
    bootstrap_port  where prefill answers decode's first question; only read for PREFILL
    """

    role: Role
    model: Path
    port: int
    host: str = "127.0.0.1"
    bootstrap_port: int = 8998
    mode: ServeMode = ServeMode.LAYERWISE
    rdma: bool = False
    extra: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "server" if self.role is Role.AGGREGATED else self.role.value

    @property
    def url(self) -> str:
        """Where a client on the same network reaches it."""
        return base_url(self.host, self.port)

    def argv(self) -> list[str]:
        command = [*self.prefix, sys.executable, "-m", "sglang.launch_server"]
        command += ["--model-path", str(self.model), "--host", self.host, "--port", str(self.port)]
        command += ["--enable-metrics"]
        if self.role is not Role.AGGREGATED:
            command += ["--disaggregation-mode", self.role.value]
            command += self._backend()
        if self.role is Role.PREFILL:
            command += ["--disaggregation-bootstrap-port", str(self.bootstrap_port)]
        return [*command, *self.extra]

    def _backend(self) -> list[str]:
        option = "--disaggregation-transfer-backend"
        if self.mode is ServeMode.STOCK:
            return [option, "mooncake"]
        return [option, "smartgen", "--smartgen-mode", self.mode.value]

    def full_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What the process gets: inherited, then ours, then the spec's own."""
        address = reachable(self.host)
        ours = {
            # Without it SGLang asks the network for its address, and fails where there is none.
            "SGLANG_HOST_IP": address,
            "SGLANG_HEALTH_CHECK_TIMEOUT": str(HEALTH_CHECK_TIMEOUT_S),
            **_no_proxy(inherited, address),
        }
        if self.mode is ServeMode.STOCK and not self.rdma:
            ours |= _STOCK_TCP
        return {**inherited, **ours, **self.environment}


@dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """SGLang's router in front of prefill and decode servers.

    prefills  (URL, bootstrap port) of each prefill server
    decodes   URL of each decode server
    """

    prefills: tuple[tuple[str, int], ...]
    decodes: tuple[str, ...]
    port: int
    metrics_port: int
    host: str = "127.0.0.1"
    extra: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "router"

    @property
    def url(self) -> str:
        return base_url(self.host, self.port)

    def argv(self) -> list[str]:
        command = [*self.prefix, sys.executable, "-m", "sglang_router.launch_router"]
        command += ["--pd-disaggregation"]
        for url, bootstrap_port in self.prefills:
            command += ["--prefill", url, str(bootstrap_port)]
        for url in self.decodes:
            command += ["--decode", url]
        command += ["--host", self.host, "--port", str(self.port)]
        # Its default, 29000, collides with a second router; nobody outside needs to read it.
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port)]
        return [*command, *PATIENT_ROUTER, *self.extra]

    def full_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        ours = {"NO_COLOR": "1", **_no_proxy(inherited, reachable(self.host))}
        return {**inherited, **ours, **self.environment}


# What keeps the router from taking a busy CPU server for a dead one. Later options win, so
# `RouterSpec.extra` can change each of them.
PATIENT_ROUTER: tuple[str, ...] = (
    # The default, 5 s, is shorter than one long prompt on a CPU. Above the server's own limit, so
    # that the server, which knows, gives the verdict.
    *("--health-check-timeout-secs", str(HEALTH_CHECK_TIMEOUT_S + 15)),
    # Each check makes the server generate a token; the default, 60 s, would notice a dead server
    # after three minutes, 20 s after one.
    *("--health-check-interval-secs", "20"),
    *("--health-failure-threshold", "3"),
    # One good answer is proof enough; the default of two keeps a recovered server out longer.
    *("--health-success-threshold", "1"),
    # There is no second server to switch to: an open circuit (60 s by default) would turn one
    # failed request into a refusal of all.
    "--disable-circuit-breaker",
    # A repeat sends the whole prompt through prefill again, on a machine that just proved too
    # slow, and hides the first error from the client.
    "--disable-retries",
    # Servers are healthy before the router starts; the default looks only every 30 s.
    *("--worker-startup-check-interval", "1"),
    *("--worker-startup-timeout-secs", "120"),
    # The default waits 180 s for running requests when asked to stop.
    *("--shutdown-grace-period-secs", "3"),
    # The default guesses from prompts which server has a prefix cached: work without a choice.
    *("--policy", "round_robin"),
)


def reachable(host: str) -> str:
    """The address to use for a server that listens on `host`."""
    return _ANY_ADDRESS.get(host, host)


def base_url(host: str, port: int) -> str:
    address = reachable(host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _no_proxy(inherited: Mapping[str, str], address: str) -> dict[str, str]:
    """SGLang calls its own servers through `requests`, which would go to a configured proxy."""
    before = inherited.get("no_proxy") or inherited.get("NO_PROXY") or ""
    hosts = [host for host in before.split(",") if host]
    hosts += [host for host in ("127.0.0.1", "localhost", address) if host not in hosts]
    joined = ",".join(hosts)
    return {"no_proxy": joined, "NO_PROXY": joined}
