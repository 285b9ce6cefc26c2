"""Server defaults for the portable CPU platform: a pair of servers must fit one small machine.

Runs as SGLang's platform-defaults step. Only values that the user left open are set, and each is
declared through SGLang so that it shows up with its source. Reasons stand beside the values.
"""

import logging
import os
from typing import Any

from sglang.srt.arg_groups.model_override_base import model_config_of
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.platforms import current_platform
from smartgen.config import CPU_KV_POOL_BYTES, set_variable, variable

from smartgen_patches.platform_cpu import PortableCpuPlatform

logger = logging.getLogger(__name__)

PAGE_SIZE = 16
MAX_RUNNING_REQUESTS = 32
_KV_ELEMENT_BYTES = {"float32": 4, "fp8_e5m2": 1, "fp8_e4m3": 1}


def apply_platform_defaults(server_args: Any, previous: Any) -> None:
    """SGLang resolution step `handle_platform_defaults`: SGLang's own first, then ours on CPU."""
    previous(server_args)
    if not isinstance(current_platform, PortableCpuPlatform):
        return
    declare_resolution(server_args, "smartgen cpu platform", **_defaults(server_args))
    _limit_threads(resolving_view(server_args))


def _defaults(server_args: Any) -> dict[str, Any]:
    cfg = resolving_view(server_args)
    # A CPU forward blocks its scheduler, so overlapping only delays every token by one step.
    # An idle server must not spin on a machine that has a core for each server at best.
    values: dict[str, Any] = {"disable_overlap_schedule": True, "sleep_on_idle": True}
    if cfg.page_size is None:
        values["page_size"] = PAGE_SIZE
    if cfg.max_running_requests is None:
        values["max_running_requests"] = MAX_RUNNING_REQUESTS
    if cfg.max_total_tokens is None and cfg.mem_fraction_static is None:
        # SGLang's default is a share of the machine; two servers would take more than all of it.
        values["max_total_tokens"] = CPU_KV_POOL_BYTES // _kv_bytes_per_token(server_args)
    if cfg.disaggregation_mode == "decode" and cfg.disaggregation_decode_retraction_backup is None:
        # The other backup pins host memory through CUDA.
        values["disaggregation_decode_retraction_backup"] = "cpu_tensor"
    return values


def _kv_bytes_per_token(server_args: Any) -> int:
    model = model_config_of(server_args)
    cfg = resolving_view(server_args)
    name = cfg.kv_cache_dtype if cfg.kv_cache_dtype != "auto" else str(model.dtype).split(".")[-1]
    element = _KV_ELEMENT_BYTES.get(name, 2)
    heads = model.get_num_kv_heads(cfg.tp_size)
    per_layer = heads * (model.head_dim + model.v_head_dim) * element
    return max(1, int(model.num_hidden_layers * per_layer))


def _limit_threads(cfg: Any) -> None:
    """One server of a prefill-decode pair takes half of the cores, in this and child processes.

    Two servers whose OpenMP threads outnumber the cores wait for descheduled threads at every
    barrier.
    """
    if cfg.disaggregation_mode == "null" or variable("OMP_NUM_THREADS"):
        return
    threads = max(1, _usable_cores() // 2)
    set_variable("OMP_NUM_THREADS", str(threads))
    logger.info("smartgen: %d OpenMP thread(s) for this server; OMP_NUM_THREADS overrides", threads)


def _usable_cores() -> int:
    """Cores that this process may run on: a container or `taskset` can grant it fewer than exist."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
