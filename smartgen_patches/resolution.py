"""SGLang resolution step for prefill-decode settings: the name `smartgen`, its checks and defaults.

The name is accepted on the command line and becomes `mooncake` here, so that every comparison
inside SGLang holds; which classes then serve is decided in `classes.py`.
"""

import logging
from dataclasses import replace
from typing import Any

from sglang.srt.arg_groups.model_override_base import model_config_of
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.platforms import current_platform
from smartgen.config import OnUnsupported, Settings, SettingsError, settings_to_mapping
from smartgen.core import Mode
from smartgen.launch import CheckFailed
from smartgen.launch.ports import require_free

from smartgen_patches.args import BACKEND_NAME, attach_settings
from smartgen_patches.errors import StartRefused
from smartgen_patches.platform_cpu import PortableCpuPlatform
from smartgen_patches.support import outlasting_write, unsupported_feature, unsupported_model
from smartgen_patches.transport import prepare_transport

logger = logging.getLogger(__name__)


def resolve_pd_disaggregation(server_args: Any, previous: Any) -> None:
    """SGLang resolution step `handle_pd_disaggregation`. Raises StartRefused."""
    cfg = resolving_view(server_args)
    if cfg.disaggregation_transfer_backend != BACKEND_NAME:
        previous(server_args)
        return
    _refuse_taken_ports(cfg)
    try:
        settings = attach_settings(server_args)
        _refuse_statistics_elsewhere(server_args, settings)
        settings = _supported(server_args, settings)
    except SettingsError as error:
        raise StartRefused(str(error)) from error
    server_args._smartgen = settings_to_mapping(settings)
    prepare_transport(settings.protocol)
    declare_resolution(server_args, BACKEND_NAME, disaggregation_transfer_backend="mooncake")
    previous(server_args)


def _refuse_taken_ports(cfg: Any) -> None:
    """SGLang finds out after it has loaded the model."""
    ports = {"--port": (cfg.host, cfg.port)}
    if cfg.disaggregation_mode == "prefill":
        bootstrap_port = cfg.disaggregation_bootstrap_port
        ports["--disaggregation-bootstrap-port"] = (cfg.host, bootstrap_port)
    try:
        require_free(ports)
    except CheckFailed as error:
        raise StartRefused(str(error)) from error


def _refuse_statistics_elsewhere(server_args: Any, settings: Settings) -> None:
    """In no mode: what is refused for a layer-wise transfer was never tried with them either."""
    if not settings.statistics:
        return
    if resolving_view(server_args).disaggregation_mode != "prefill":
        reason: str | None = "a prefill server takes them, no other; leave it out here"
    elif not isinstance(current_platform, PortableCpuPlatform):
        name = current_platform.device_name
        reason = f"they are taken on the portable CPU platform, not on {name}; leave it out"
    else:
        reason = _unsupported(server_args)
    if reason is not None:
        raise StartRefused(f"--smartgen-statistics: {reason}")


def _supported(server_args: Any, settings: Settings) -> Settings:
    """`settings` as they can be served, or StartRefused."""
    if settings.mode is Mode.FULL:
        return settings
    reason = _unsupported(server_args)
    if reason is None:
        _refuse_outlasting_writes(settings)
        return settings
    sentence = f"--smartgen-mode {settings.mode.value}: {reason}"
    if settings.on_unsupported is OnUnsupported.REFUSE:
        raise StartRefused(
            f"{sentence} (or serve by full transfer: --smartgen-on-unsupported full)"
        )
    logger.warning("smartgen: %s; serving by full transfer", sentence)
    return replace(settings, mode=Mode.FULL)


def _refuse_outlasting_writes(settings: Settings) -> None:
    reason = outlasting_write(settings)
    if reason is not None:
        raise StartRefused(reason)


def _unsupported(server_args: Any) -> str | None:
    cfg = resolving_view(server_args)
    if cfg.disaggregation_mode == "null":
        return "it needs --disaggregation-mode prefill or decode"
    if not isinstance(current_platform, PortableCpuPlatform):
        return f"it has not been tested on {current_platform.device_name}; use --smartgen-mode full"
    if cfg.attention_backend not in (None, "torch_native"):
        return f"--attention-backend {cfg.attention_backend} is not supported with it; leave it out"
    return unsupported_feature(cfg) or unsupported_model(model_config_of(server_args))
