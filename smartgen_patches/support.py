"""What layer-wise transfer supports. Each entry is one sentence that names the flag to change.

`full` transfer is SGLang's own and refuses nothing here. The findings behind the table: SGLang
0.5.23 keeps other page owners, buffers or start orders for these features, or they were never
run together with SmartGen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.environ import envs
from smartgen.config import Settings


@dataclass(frozen=True)
class Unsupported:
    """A feature, the test for it on resolved settings, and the user's way out."""

    flag: str
    present: Callable[[Any], bool]
    remedy: str = "leave it out"


def _flag(name: str) -> Unsupported:
    return Unsupported("--" + name.replace("_", "-"), lambda cfg: bool(getattr(cfg, name)))


def _size(name: str) -> Unsupported:
    return Unsupported("--" + name.replace("_", "-"), lambda cfg: getattr(cfg, name) > 1, "use 1")


UNSUPPORTED: tuple[Unsupported, ...] = (
    _size("tp_size"),
    _size("pp_size"),
    _size("dcp_size"),
    _size("attn_cp_size"),
    _flag("enable_dp_attention"),
    _flag("enable_kv_cache_sharding"),
    _flag("speculative_algorithm"),
    _flag("enable_hierarchical_cache"),
    _flag("enable_lmcache"),
    _flag("enable_hisparse"),
    _flag("enable_unified_memory"),
    _flag("enable_page_major_kv_layout"),
    _flag("enable_pd_role_switch"),
    _flag("enable_pdmux"),
    _flag("enable_two_batch_overlap"),
    _flag("encoder_only"),
    _flag("language_only"),
    _flag("dllm_algorithm"),
    _flag("disaggregation_enable_kv_checksum"),
    _flag("disaggregation_decode_enable_radix_cache"),
    _flag("disaggregation_decode_enable_offload_kvcache"),
    _flag("optimistic_prefill_attempts"),
    Unsupported(
        "--disaggregation-decode-allocation-policy prefill_complete",
        lambda cfg: cfg.disaggregation_decode_allocation_policy != "early",
        "use 'early'",
    ),
    Unsupported(
        "--disaggregation-decode-host-receive-threshold",
        lambda cfg: cfg.disaggregation_decode_host_receive_threshold < 1,
        "use 1",
    ),
    Unsupported(
        "--kv-cache-dtype",
        lambda cfg: cfg.kv_cache_dtype not in ("auto", "bfloat16", "float16", "float32"),
        "use 'auto'",
    ),
    Unsupported(
        # Without it decode frees an aborted request's pages while they may still be written.
        "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=0",
        lambda cfg: not envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE.get(),
    ),
    Unsupported(
        "SGLANG_DISAGG_STAGING_BUFFER", lambda cfg: envs.SGLANG_DISAGG_STAGING_BUFFER.get()
    ),
)


def unsupported_feature(cfg: Any) -> str | None:
    """The first unsupported feature of resolved settings `cfg`, as a sentence; None without one."""
    for feature in UNSUPPORTED:
        if feature.present(cfg):
            return f"{feature.flag} is not supported with it; {feature.remedy}"
    return None


def unsupported_model(model: Any) -> str | None:
    """The same for a model's configuration (SGLang's ModelConfig)."""
    name = "/".join(model.hf_config.architectures or ["this model"])
    if not model.is_generation:
        return f"{name} does not generate text; serve it without disaggregation"
    if model.attention_arch != AttentionArch.MHA:
        return f"{name} keeps a compressed KV cache (MLA); only MHA and GQA models are supported"
    if model.is_hybrid_swa or getattr(model, "is_multimodal", False):
        return f"{name} uses sliding-window layers or several modalities; neither is supported"
    return None


def outlasting_write(settings: Settings) -> str | None:
    """Why a write may outlast SGLang's hold on the pages it goes to; None if it may not.

    Decode gives the pages of an aborted request to another one after that time, whether prefill
    said that its writes are over or not.
    """
    hold = envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT
    if settings.write_deadline_s < hold.get():
        return None
    return (
        f"--smartgen-write-deadline-s {settings.write_deadline_s:g} is not below "
        f"{hold.name}={hold.get():g}, after which decode reuses the pages of an aborted request; "
        "lower the flag, or set the variable above it on both servers"
    )
