"""What `/server_info` says about SmartGen: `internal_states[i].smartgen`."""

from typing import Any

from smartgen_patches.args import settings_of
from smartgen_patches.idle import kv_manager_of


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
    manager = kv_manager_of(scheduler)
    if manager is None:
        return 0
    prefill = scheduler.disaggregation_mode.value == "prefill"
    side = manager.prefill_side if prefill else manager.decode_side
    return int(side.open_count())
