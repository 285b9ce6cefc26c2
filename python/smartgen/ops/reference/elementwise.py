"""The small operators between the matrix products of a Llama-like layer.

They round where SGLang's `forward_native` rounds: float32 inside a norm, the element type between the
torch operators of an activation or a rotation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rmsnorm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension of x [tokens, width]; weight [width]."""
    normed = _norm(x.float(), weight, eps).to(x.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """In place: `residual += x` (added in float32), then `x = rmsnorm(sum)`; the norm sees the unrounded sum."""
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(_norm(total, weight, eps))


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """`silu(x[:, :width]) * x[:, width:]` for x [tokens, 2 * width]."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(F.silu(gate), up, out=out)


def rotary_embedding(
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    neox: bool = True,
) -> None:
    """Rotates the first rotary_dim elements of every head, in place.

    positions [tokens]; q and k [tokens, heads * head_size]; cos_sin_cache [max_positions, rotary_dim], cosines then
    sines. neox rotates the two halves against each other, otherwise neighbouring elements.
    """
    rotary_dim = cos_sin_cache.shape[1]
    cos, sin = (c[:, None, :].to(q.dtype) for c in cos_sin_cache[positions.long()].chunk(2, dim=-1))
    for x in (q, k):
        heads = x.unflatten(-1, (-1, head_size))[..., :rotary_dim]
        x1, x2 = heads.chunk(2, dim=-1) if neox else (heads[..., ::2], heads[..., 1::2])
        new1, new2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
        x1.copy_(new1)
        x2.copy_(new2)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """`x @ weight.T + bias`, summed in float32; x [rows, width], weight [features, width], bias [features]."""
    result = F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return result if out is None else out.copy_(result)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of float32 rows, still in float32."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight
