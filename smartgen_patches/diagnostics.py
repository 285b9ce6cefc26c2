"""What `/server_info` says about SmartGen: `internal_states[i].smartgen`."""

from typing import Any

from smartgen_patches.args import settings_of


def after_get_internal_state(result: Any, scheduler: Any, recv_req: Any) -> None:
    """Hook on Scheduler.get_internal_state; adds plain JSON values to its dict.

    free_tokens counts KV slots that no request and no cache entry holds; open counts requests
    whose transfer is not over.
    """
    settings = settings_of(scheduler.server_args)
    if settings is None:
        return
    allocator = scheduler.token_to_kv_pool_allocator
    result.internal_state["smartgen"] = {
        "mode": settings.mode.value,
        "free_tokens": int(allocator.available_size()),
        "total_tokens": int(allocator.size),
        "open": _open_transfers(scheduler),
    }


def _open_transfers(scheduler: Any) -> int:
    if scheduler.disaggregation_mode.value == "prefill":
        manager = scheduler.disagg_prefill_bootstrap_queue.kv_manager
        return int(manager.prefill_side.open_count())
    manager = scheduler.disagg_decode_prealloc_queue.kv_manager
    return int(manager.decode_side.open_count())
