"""Statistics of prompts on a prefill server: where they can be taken, and what SGLang must leave them.

How they are taken stands in `smartgen.runtime.statistics`; `forward_context.py` says which rows of
a forward belong to which request.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.layers.radix_attention import RadixAttention
from smartgen.select import SelectError

from smartgen_patches.attention import PagedCpuAttention
from smartgen_patches.errors import StartRefused
from smartgen_patches.idle import kv_manager_of


def prepare_statistics(scheduler: Any) -> None:
    """What can only be checked once the model is loaded. Raises StartRefused."""
    if not _computes_every_layer(scheduler.tp_worker.model_runner):
        raise StartRefused(
            "--smartgen-statistics: this model has attention layers that SmartGen's kernels "
            "do not compute; leave it out"
        )
    manager = kv_manager_of(scheduler)
    assert manager is not None, "resolution refuses statistics on an aggregated server"
    try:
        manager.prefill_side.prepare_statistics()
    except SelectError as error:
        raise StartRefused(f"--smartgen-statistics: {error}") from error


def _computes_every_layer(model_runner: Any) -> bool:
    backend = model_runner.attn_backend
    return isinstance(backend, PagedCpuAttention) and all(
        backend.computes(layer, model_runner.dtype)
        for layer in model_runner.model.modules()
        if isinstance(layer, RadixAttention)
    )


def around_max_prefix_len(original: Callable[[Any, int], int], req: Any, input_len: int) -> int:
    """Hook on Req._compute_max_prefix_len: a cached prefix ends before the queries that count."""
    limit = original(req, input_len)
    statistics = getattr(req.disagg_kv_sender, "statistics", None)
    return limit if statistics is None else min(limit, int(statistics.first))
