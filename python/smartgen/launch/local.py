"""Plans a prefill-decode pair with its router on this machine, after checking what can be checked.

The servers listen on loopback only; the router alone is exposed. Both servers get the same model,
mode and extra options, so that they cannot disagree about what they transfer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smartgen.launch import checks, ports
from smartgen.launch.errors import CheckFailed
from smartgen.launch.pair import PairSpec
from smartgen.launch.server import Role, RouterSpec, ServeMode, ServerSpec
from smartgen.transport import rdma_devices

_LOOPBACK = "127.0.0.1"
_OURS = (
    *("--model-path", "--model", "--host", "--port", "--disaggregation-mode"),
    *("--disaggregation-transfer-backend", "--disaggregation-bootstrap-port", "--smartgen-mode"),
)


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """What a user may choose. A port of 0 means: any free one.

    host, port  where the router listens
    extra       options for both servers, as SGLang's command line takes them
    """

    model: Path
    logs: Path
    mode: ServeMode = ServeMode.LAYERWISE
    host: str = _LOOPBACK
    port: int = 0
    prefill_port: int = 0
    decode_port: int = 0
    bootstrap_port: int = 0
    start_timeout_s: float = 180.0
    extra: tuple[str, ...] = ()


def plan_local_pair(options: LocalOptions) -> PairSpec:
    """A pair that can be started now. Raises CheckFailed with one sentence where it cannot."""
    _require_not_ours(options.extra)
    checks.require_versions()
    checks.require_mooncake_libraries()
    checks.require_model(options.model)
    checks.require_memory(options.model, options.extra)
    port, prefill_port, decode_port, bootstrap_port, metrics_port = _ports(options)
    servers = {
        role: ServerSpec(
            role=role,
            model=options.model,
            port=server_port,
            bootstrap_port=bootstrap_port,
            mode=options.mode,
            rdma=bool(rdma_devices()),
            extra=options.extra,
        )
        for role, server_port in ((Role.PREFILL, prefill_port), (Role.DECODE, decode_port))
    }
    prefill, decode = servers[Role.PREFILL], servers[Role.DECODE]
    router = RouterSpec(
        prefills=((prefill.url, bootstrap_port),),
        decodes=(decode.url,),
        host=options.host,
        port=port,
        metrics_port=metrics_port,
    )
    return PairSpec(
        prefill=prefill,
        decode=decode,
        router=router,
        logs=options.logs,
        start_timeout_s=options.start_timeout_s,
    )


def _ports(options: LocalOptions) -> list[int]:
    """Router, prefill, decode, bootstrap, router metrics."""
    wanted = {
        "--port": (options.host, options.port),
        "--prefill-port": (_LOOPBACK, options.prefill_port),
        "--decode-port": (_LOOPBACK, options.decode_port),
        "--bootstrap-port": (_LOOPBACK, options.bootstrap_port),
    }
    ports.require_free({option: at for option, at in wanted.items() if at[1] != 0})
    given = [port for _, port in wanted.values()]
    free = iter(ports.pick(given.count(0) + 1, options.host, taken=given))
    return [port or next(free) for port in given] + [next(free)]


def _require_not_ours(extra: Sequence[str]) -> None:
    for option in extra:
        if option.split("=")[0] in _OURS:
            raise CheckFailed(
                f"{option} after `--` is set by smartgen itself; use smartgen's own option instead "
                "(smartgen up --help)"
            )
