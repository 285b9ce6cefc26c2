"""The CPU attention backend: SmartGen's paged kernels inside SGLang's `torch_native` name.

The name stays because SGLang tests it wherever it would otherwise call Triton. Plain causal
self-attention goes to our kernels; anything else (cross attention, sliding windows, logit caps,
encoders) stays with SGLang's operators.
"""

import logging
from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.platforms import current_platform
from smartgen import ops

from smartgen_patches.forward_context import layer_attended, layer_written
from smartgen_patches.platform_cpu import KERNEL_DTYPES, PortableCpuPlatform

logger = logging.getLogger(__name__)


def install_attention_backend() -> None:
    """Take over the name on the portable CPU platform; elsewhere do nothing."""
    if isinstance(current_platform, PortableCpuPlatform):
        ATTENTION_BACKENDS["torch_native"] = PagedCpuAttention


class PagedCpuAttention(TorchNativeAttnBackend):
    """Paged prefill with prefix and paged decode; no chunk recomputes an earlier one."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self._ops = ops.backend()
        self._page_size = model_runner.token_to_kv_pool.page_size

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        if save_kv_cache and k is not None and v is not None:
            self._save(layer, forward_batch, k, v)
        # Before the attention itself: the layer's KV is final, and the link may be idle.
        layer_written(layer.layer_id)
        if not self.computes(layer, q.dtype):
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache=False)
        queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        k_cache = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        out, lse2 = self._ops.extend_attention(
            queries,
            k_cache,
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            forward_batch.extend_prefix_lens,
            forward_batch.seq_lens,
            page_size=self._page_size,
            scale=layer.scaling,
        )
        layer_attended(layer.layer_id, queries, lse2, k_cache, layer.scaling)
        return out.view(q.shape[0], -1)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        if not self.computes(layer, q.dtype):
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        if save_kv_cache and k is not None and v is not None:
            self._save(layer, forward_batch, k, v)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out, _ = self._ops.decode_attention(
            q,
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens,
            page_size=self._page_size,
            scale=layer.scaling,
        )
        return out.view(q.shape[0], -1)

    def _save(self, layer: Any, forward_batch: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        loc = (
            forward_batch.encoder_out_cache_loc
            if layer.is_cross_attention
            else forward_batch.out_cache_loc
        )
        self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(loc, self.swa_out_cache_loc), k, v)

    def computes(self, layer: Any, dtype: torch.dtype) -> bool:
        """Whether the layer is causal self-attention that the kernels compute for such queries."""
        return (
            not layer.is_cross_attention
            and layer.attn_type == AttentionType.DECODER
            and layer.qk_head_dim == layer.v_head_dim
            and layer.qk_head_dim % 16 == 0
            and layer.sliding_window_size in (None, -1)
            and not layer.logit_cap
            and dtype in KERNEL_DTYPES
            and self.token_to_kv_pool.get_key_buffer(layer.layer_id).dtype == dtype
        )
