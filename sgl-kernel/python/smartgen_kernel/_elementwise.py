"""Norms, activation, rotary embedding and few-row products: the typed face of those kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from smartgen_kernel import _C
from smartgen_kernel._check import (
    DTYPES,
    dtype_code,
    exactly,
    index_bytes,
    refuse,
    rows_of,
    same_kind,
    threads,
)
from smartgen_kernel._isa import kernels

LINEAR_MAX_ROWS = 8


def rmsnorm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None = None,
    *,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, rounded once.

    x [tokens, width] with contiguous rows, weight [width]; ``out`` like x, may be x itself.
    """
    code, x_row = dtype_code("x", x), rows_of("x", x, x.dtype)
    tokens, width = x.shape
    exactly("weight", weight, (width,), x.dtype)
    if out is None:
        out = torch.empty(tokens, width, dtype=x.dtype)
    out_row = _like("out", out, x)
    _C.rms_norm(
        kernels(isa), code, x.data_ptr(), x_row, 0, 0, weight.data_ptr(), out.data_ptr(), out_row, tokens, width, eps,
        threads(num_threads),
    )  # fmt: skip
    return out


def fused_add_rmsnorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    num_threads: int | None = None,
    isa: str | None = None,
) -> None:
    """In place: ``residual += x`` (added in float32, stored in its type), then ``x = rmsnorm(sum) * weight``.

    The norm sees the sum before it is rounded.  x and residual [tokens, width] with contiguous rows, weight [width].
    """
    code, x_row = dtype_code("x", x), rows_of("x", x, x.dtype)
    tokens, width = x.shape
    exactly("weight", weight, (width,), x.dtype)
    residual_row = _like("residual", residual, x)
    _C.rms_norm(
        kernels(isa), code, x.data_ptr(), x_row, residual.data_ptr(), residual_row, weight.data_ptr(), x.data_ptr(),
        x_row, tokens, width, eps, threads(num_threads),
    )  # fmt: skip


def silu_and_mul(
    x: Tensor, out: Tensor | None = None, *, num_threads: int | None = None, isa: str | None = None
) -> Tensor:
    """``silu(x[:, :width]) * x[:, width:]`` for x [tokens, 2 * width]; silu is rounded to x's type before the product.

    Returns [tokens, width].
    """
    code, x_row = dtype_code("x", x), rows_of("x", x, x.dtype)
    tokens, both = x.shape
    if both % 2:
        refuse("x.shape[1]", both, "an even number")
    width = both // 2
    if out is None:
        out = torch.empty(tokens, width, dtype=x.dtype)
    out_row = rows_of("out", out, x.dtype)
    if out.shape != (tokens, width):
        refuse("out.shape", tuple(out.shape), f"({tokens}, {width})")
    _C.silu_and_mul(
        kernels(isa),
        code,
        x.data_ptr(),
        x_row,
        out.data_ptr(),
        out_row,
        tokens,
        width,
        threads(num_threads),
    )
    return out


def rotary_embedding(
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    neox: bool = True,
    num_threads: int | None = None,
    isa: str | None = None,
) -> None:
    """Rotates the first rotary_dim elements of every head of q and k, in place.

    positions      [tokens] int32 or int64
    q, k           [tokens, heads * head_size] with contiguous rows; may be views of one qkv tensor
    cos_sin_cache  [max_positions, rotary_dim] contiguous, cosines then sines; float32 or bfloat16
    neox           rotate the two halves against each other; otherwise neighbouring elements
    """
    code = dtype_code("q", q)
    q_row, k_row = rows_of("q", q, q.dtype), rows_of("k", k, q.dtype)
    tokens = q.shape[0]
    if k.shape[0] != tokens:
        refuse("k.shape[0]", k.shape[0], f"{tokens} as q")
    if head_size < 1 or q.shape[1] % head_size or k.shape[1] % head_size:
        refuse(
            "head_size",
            head_size,
            f"a divisor of the widths of q ({q.shape[1]}) and k ({k.shape[1]})",
        )
    cache_code = DTYPES.get(cos_sin_cache.dtype)
    if cache_code is None:
        refuse("cos_sin_cache.dtype", cos_sin_cache.dtype, "torch.float32 or torch.bfloat16")
    same_kind("cos_sin_cache", cos_sin_cache, cos_sin_cache.dtype)
    if cos_sin_cache.dim() != 2 or not cos_sin_cache.is_contiguous():
        refuse(
            "cos_sin_cache.shape",
            tuple(cos_sin_cache.shape),
            "[max_positions, rotary_dim], contiguous",
        )
    max_positions, rotary_dim = cos_sin_cache.shape
    if rotary_dim % 2 or rotary_dim > head_size:
        refuse(
            "cos_sin_cache.shape[1]", rotary_dim, f"an even number up to head_size = {head_size}"
        )
    _C.rotary(
        kernels(isa), code, cache_code, positions.data_ptr(), index_bytes("positions", positions, tokens),
        q.data_ptr(), q_row, k.data_ptr(), k_row, cos_sin_cache.data_ptr(), max_positions, tokens,
        q.shape[1] // head_size, k.shape[1] // head_size, head_size, rotary_dim, neox, threads(num_threads),
    )  # fmt: skip


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` for up to 8 rows, streaming the weights; sums in float32, one rounding at the end.

    x [rows, width] with contiguous rows, weight [features, width] contiguous, bias [features].
    Returns [rows, features].
    """
    code, x_row = dtype_code("x", x), rows_of("x", x, x.dtype)
    rows, width = x.shape
    if rows > LINEAR_MAX_ROWS:
        refuse("x.shape[0]", rows, f"at most {LINEAR_MAX_ROWS}")
    if weight.dim() != 2:
        refuse("weight.shape", tuple(weight.shape), f"[features, {width}]")
    features = weight.shape[0]
    exactly("weight", weight, (features, width), x.dtype)
    if bias is not None:
        exactly("bias", bias, (features,), x.dtype)
    if out is None:
        out = torch.empty(rows, features, dtype=x.dtype)
    else:
        exactly("out", out, (rows, features), x.dtype)
    _C.linear(
        kernels(isa), code, x.data_ptr(), x_row, weight.data_ptr(), 0 if bias is None else bias.data_ptr(),
        out.data_ptr(), rows, features, width, threads(num_threads),
    )  # fmt: skip
    return out


def _like(name: str, tensor: Tensor, x: Tensor) -> int:
    """Row stride of a tensor that must look like x."""
    if tensor.shape != x.shape:
        refuse(f"{name}.shape", tuple(tensor.shape), str(tuple(x.shape)))
    return rows_of(name, tensor, x.dtype)
