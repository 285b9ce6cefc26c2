"""HOOKS: the only place that names SGLang functions to be hooked.

Each row says where, how, with which parameters SGLang 0.5.23 defines the target, and why. The
handlers live beside what they serve; they translate, call and return.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sglang.srt.platforms import current_platform

from smartgen_patches import (
    args,
    classes,
    cpu_ops,
    diagnostics,
    forward_context,
    idle,
    response,
    statistics,
)
from smartgen_patches.platform_cpu import PortableCpuPlatform

Kind = Literal["before", "after", "around"]
_SRT = "sglang.srt."
_PREFILL = _SRT + "disaggregation.prefill."


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One hooked function. `parameters` are its names in the pinned version, in order.

    cpu_only  hooked on the portable CPU platform alone; elsewhere it would only cost time
    """

    target: str
    kind: Kind
    handler: Callable[..., Any]
    parameters: tuple[str, ...]
    reason: str
    cpu_only: bool = False


HOOKS: tuple[Hook, ...] = (
    Hook(
        target=_SRT + "server_args.ServerArgs.add_cli_args",
        kind="after",
        handler=args.after_add_cli_args,
        parameters=("parser",),
        reason="adds the --smartgen-* flags",
    ),
    Hook(
        target=_SRT + "server_args.ServerArgs.from_cli_args",
        kind="around",
        handler=args.around_from_cli_args,
        parameters=("args",),
        reason="carries the flags' values, for which SGLang's record has no fields",
    ),
    Hook(
        target=_SRT + "disaggregation.utils.get_kv_class",
        kind="around",
        handler=classes.around_get_kv_class,
        parameters=("transfer_backend", "class_type"),
        reason="hands out our manager, sender and receiver",
    ),
    Hook(
        target=_PREFILL + "PrefillBootstrapQueue.finalize_bootstrap",
        kind="before",
        handler=forward_context.before_finalize_bootstrap,
        parameters=("self", "req"),
        reason="tells the sender which mode its request asks for, which only the request knows",
    ),
    Hook(
        target=_SRT + "managers.scheduler.Scheduler.__init__",
        kind="after",
        handler=classes.after_scheduler_init,
        parameters=("self", "server_args", "port_args"),
        reason="checks that every hook took hold, and opens meta_info for our report",
    ),
    Hook(
        target=_SRT + "managers.scheduler.Scheduler.run_batch",
        kind="before",
        handler=forward_context.before_run_batch,
        parameters=("self", "batch", "pp_proxy_tensors"),
        reason="tells the attention backend which pages of which request the forward will write",
    ),
    Hook(
        target=_SRT + "managers.schedule_batch.Req._compute_max_prefix_len",
        kind="around",
        handler=statistics.around_max_prefix_len,
        parameters=("self", "input_len"),
        cpu_only=True,
        reason="has a prompt's last queries computed, cached or not: statistics are made of them",
    ),
    Hook(
        target=_SRT + "managers.scheduler.Scheduler.on_idle",
        kind="after",
        handler=idle.after_on_idle,
        parameters=("self",),
        reason="sleeps while a transfer is all there is to wait for; SGLang spins",
    ),
    Hook(
        target=_SRT + "managers.scheduler.Scheduler.get_internal_state",
        kind="after",
        handler=diagnostics.after_get_internal_state,
        parameters=("self", "recv_req"),
        reason="shows open transfers and free pages in /server_info",
    ),
    Hook(
        target=_SRT + "layers.quantization.unquant.UnquantizedLinearMethod.apply",
        kind="around",
        handler=cpu_ops.around_linear_apply,
        parameters=("self", "layer", "x", "bias"),
        cpu_only=True,
        reason="ATen's GEMM on the CPU does not reach memory speed for a decode step's few rows",
    ),
    Hook(
        target=_SRT
        + "managers.scheduler_components.output_streamer.SchedulerOutputStreamer."
        + "build_additional_customized_info",
        kind="around",
        handler=response.around_build_customized_info,
        parameters=("self", "reqs"),
        reason="adds meta_info['smartgen'] to the finishing response",
    ),
    Hook(
        target=_SRT + "disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req",
        kind="before",
        handler=response.before_commit_transfer,
        parameters=("self", "decode_req"),
        reason="moves the transfer's report from the receiver, which is dropped here, to the request",
    ),
    Hook(
        target=_SRT
        + "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
        + "process_batch_result_decode",
        kind="after",
        handler=response.after_decode_step,
        parameters=("self", "batch", "result"),
        reason="stamps the time to second token, which SGLang does not measure",
    ),
)


def hooks_here() -> tuple[Hook, ...]:
    """The rows that apply on this machine's platform."""
    on_cpu = isinstance(current_platform, PortableCpuPlatform)
    return tuple(hook for hook in HOOKS if on_cpu or not hook.cpu_only)
