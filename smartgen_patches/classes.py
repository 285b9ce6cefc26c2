"""Which KV manager, sender and receiver SGLang gets, and the check that every hook took hold."""

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.disaggregation.utils import KVClassType, TransferBackend
from sglang.srt.platforms import current_platform
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.runtime_context import get_server_args
from smartgen.config import Settings

from smartgen_patches.args import settings_of
from smartgen_patches.errors import StartRefused
from smartgen_patches.idle import listen_for_bell
from smartgen_patches.platform_cpu import PortableCpuPlatform
from smartgen_patches.statistics import prepare_statistics

logger = logging.getLogger(__name__)


def active_settings() -> Settings | None:
    """Settings of this process's server; None where it does not use the smartgen backend."""
    return settings_of(get_server_args())


def around_get_kv_class(
    original: Callable[..., Any], transfer_backend: TransferBackend, class_type: KVClassType
) -> Any:
    """Hook on get_kv_class. Everything but Mooncake (the warm-up's FAKE too) passes untouched."""
    stock = original(transfer_backend, class_type)
    if transfer_backend is not TransferBackend.MOONCAKE:
        return stock
    if active_settings() is not None:
        # Imported late: the module creates Prometheus counters, which must not happen before
        # the main process has chosen where its metrics live.
        from smartgen_patches import disagg

        return disagg.CLASSES.get(class_type, stock)
    if class_type is KVClassType.SENDER and isinstance(current_platform, PortableCpuPlatform):
        from smartgen_patches import disagg

        return disagg.CpuMooncakeSender
    return stock


def after_scheduler_init(result: None, scheduler: Any, server_args: Any, port_args: Any) -> None:
    """Hook on Scheduler.__init__: every hook must be in place, or requests would go wrong later."""
    from smartgen_patches.hooks import hooks_here

    settings = settings_of(server_args)
    if settings is None:
        return
    hooks = hooks_here()
    missing = [hook.target for hook in hooks if hook.target not in HookRegistry._patched]
    if missing:
        raise StartRefused(f"hook {missing[0]} did not take hold; reinstall sglang and smartgen")
    if settings.statistics:
        prepare_statistics(scheduler)
    listen_for_bell(scheduler)
    scheduler.output_streamer.__class__.has_additional_customized_info = True
    logger.info("smartgen: mode %s, %d hooks verified", settings.mode.value, len(hooks))
