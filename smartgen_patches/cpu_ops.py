"""SGLang's per-layer operators on the portable CPU platform, through SmartGen's kernels.

Without these an SGLang CPU server runs each norm, activation and rotation as five to ten torch
operators. Each function here takes the common case and hands every other to SGLang's own.
"""

from collections.abc import Callable
from typing import Any

import torch
from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.platforms import current_platform
from smartgen import ops

from smartgen_patches.platform_cpu import DISPATCH_KEY, KERNEL_DTYPES, PortableCpuPlatform


def install_cpu_ops() -> None:
    """Register the operators where the portable CPU platform is active."""
    if not isinstance(current_platform, PortableCpuPlatform):
        return
    for kind, forward in _FORWARDS.items():
        BaseFusedOp.register_oot_forward(kind, forward, DISPATCH_KEY)


def rmsnorm(
    self: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    post_residual_addition: torch.Tensor | None = None,
    quant_linear: Any = None,
) -> Any:
    """RMSNorm.forward, with the residual addition fused in."""
    plain = (
        x.dim() == 2
        and x.dtype in KERNEL_DTYPES
        and self.weight.dtype == x.dtype
        and (residual is None or residual.dtype == x.dtype)
        and self.variance_size_override is None
        and self.override_orig_dtype is None
        and not self.cast_x_before_out_mul
        and not self.fp32_residual
        and post_residual_addition is None
    )
    if not plain:
        return self.forward_native(x, residual, post_residual_addition, quant_linear)
    x = x.contiguous()
    kernels = ops.backend()
    if residual is None:
        return kernels.rmsnorm(x, self.weight.data, self.variance_epsilon)
    kernels.fused_add_rmsnorm(x, residual, self.weight.data, self.variance_epsilon)
    return x, residual


def silu_and_mul(self: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """SiluAndMul.forward."""
    if x.dim() != 2 or x.dtype not in KERNEL_DTYPES or args or kwargs:
        return self.forward_native(x, *args, **kwargs)
    return ops.backend().silu_and_mul(x)


def rotary_embedding(
    self: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    offsets: torch.Tensor | None = None,
    fused_set_kv_buffer_arg: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RotaryEmbedding.forward, in place."""
    plain = (
        query.dim() == 2
        and key.dim() == 2
        and positions.dim() == 1
        and query.dtype in KERNEL_DTYPES
        and offsets is None
        and fused_set_kv_buffer_arg is None
        and not hasattr(self, "sin_cos_cache")
    )
    if not plain:
        native: tuple[torch.Tensor, torch.Tensor] = self.forward_native(
            positions, query, key, offsets, fused_set_kv_buffer_arg
        )
        return native
    ops.backend().rotary_embedding(
        positions, query, key, self.cos_sin_cache, self.head_size, neox=self.is_neox_style
    )
    return query, key


def around_linear_apply(
    original: Callable[..., torch.Tensor],
    method: Any,
    layer: Any,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Hook on UnquantizedLinearMethod.apply: a decode step's few rows stream the weights once."""
    if x.dim() == 2 and x.shape[0] <= ops.FEW_ROWS and _streams(x, layer.weight):
        return ops.backend().linear(x, layer.weight.data, bias)
    return original(method, layer, x, bias)


def _streams(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        x.dtype in KERNEL_DTYPES
        and weight.dtype == x.dtype
        and weight.is_contiguous()
        and x.is_contiguous()
    )


_FORWARDS: dict[type, Callable[..., Any]] = {
    RMSNorm: rmsnorm,
    SiluAndMul: silu_and_mul,
    RotaryEmbedding: rotary_embedding,
}
