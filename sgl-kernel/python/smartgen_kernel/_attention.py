"""Paged attention over an NHD pool: the typed face of the extend and decode kernels."""

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
    same_kind,
    threads,
)
from smartgen_kernel._isa import kernels


def extend_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    rows: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    *,
    page_size: int,
    scale: float,
    out: Tensor | None = None,
    lse2: Tensor | None = None,
    num_threads: int | None = None,
    isa: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal attention of fresh tokens over their cached prefix and themselves.

    q             [tokens, heads, head_size]   fresh tokens of all requests, one after the other; head_size is a
                                               multiple of 16, the last dimension contiguous
    k_cache       [slots, kv_heads, head_size] heads is a multiple of kv_heads; holds the fresh tokens already
    v_cache       like k_cache
    req_to_token  [requests, max_len] int32    slot of each position; positions of one page have consecutive slots
    rows          [batch] int32 or int64       row of req_to_token of each request
    prefix_lens   [batch] int32 or int64       tokens before the fresh ones
    seq_lens      [batch] int32 or int64       tokens in all; request i owns seq_lens[i] - prefix_lens[i] rows of q
    scale         factor on q . k
    out, lse2     results to write into, contiguous

    Returns ``out`` [tokens, heads, head_size] and ``lse2`` [tokens, heads] float32, the base-2 log-sum-exp of the
    scaled logits.  Slots past seq_lens are never read.  A query's result is bitwise the same however its prompt is
    cut into chunks.  Raises ValueError for tensors, lengths or slots that do not fit.
    """
    return _attention(
        True,
        q,
        k_cache,
        v_cache,
        req_to_token,
        rows,
        prefix_lens,
        seq_lens,
        page_size,
        scale,
        out,
        lse2,
        num_threads,
        isa,
    )


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    *,
    page_size: int,
    scale: float,
    out: Tensor | None = None,
    lse2: Tensor | None = None,
    num_threads: int | None = None,
    isa: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of one query per request over its whole cache.

    q is [batch, heads, head_size]; every other argument and the result are as in :func:`extend_attention`.
    A request of length 0 gives zeros and a log-sum-exp of -inf.
    """
    return _attention(
        False,
        q,
        k_cache,
        v_cache,
        req_to_token,
        rows,
        None,
        seq_lens,
        page_size,
        scale,
        out,
        lse2,
        num_threads,
        isa,
    )


def _attention(
    extend: bool,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    req_to_token: Tensor,
    rows: Tensor,
    prefix_lens: Tensor | None,
    seq_lens: Tensor,
    page_size: int,
    scale: float,
    out: Tensor | None,
    lse2: Tensor | None,
    num_threads: int | None,
    isa: str | None,
) -> tuple[Tensor, Tensor]:
    tokens, heads, head_size = _query_shape(q)
    dtype = q.dtype
    q_token, q_head, _ = q.stride()
    k_slot = _slot_stride("k_cache", k_cache, dtype, head_size)
    v_slot = _slot_stride("v_cache", v_cache, dtype, head_size)
    slots, kv_heads, _ = k_cache.shape
    if v_cache.shape != k_cache.shape:
        refuse("v_cache.shape", tuple(v_cache.shape), f"{tuple(k_cache.shape)} as k_cache")
    if not kv_heads or heads % kv_heads or not heads:
        refuse("q.shape[1]", heads, f"a positive multiple of the {kv_heads} heads of k_cache")
    same_kind("req_to_token", req_to_token, torch.int32)
    if req_to_token.dim() != 2 or req_to_token.stride(1) != 1:
        refuse(
            "req_to_token.shape", tuple(req_to_token.shape), "[requests, max_len], contiguous rows"
        )
    if page_size < 1:
        refuse("page_size", page_size, "at least 1")

    batch = seq_lens.numel() if prefix_lens is not None else tokens
    rows_bytes = index_bytes("rows", rows, batch)
    seq_bytes = index_bytes("seq_lens", seq_lens, batch)
    prefix, prefix_bytes = 0, 4
    if prefix_lens is not None:
        prefix_bytes = index_bytes("prefix_lens", prefix_lens, batch)
        prefix = prefix_lens.data_ptr()
    out = _result("out", out, (tokens, heads, head_size), dtype)
    lse2 = _result("lse2", lse2, (tokens, heads), torch.float32)
    _C.attention(
        kernels(isa), extend, DTYPES[dtype], q.data_ptr(), q_token, q_head, k_cache.data_ptr(), k_slot,
        v_cache.data_ptr(), v_slot, slots, req_to_token.data_ptr(), req_to_token.stride(0), *req_to_token.shape,
        rows.data_ptr(), rows_bytes, prefix, prefix_bytes, seq_lens.data_ptr(), seq_bytes, batch, tokens, heads,
        kv_heads, head_size, page_size, scale, out.data_ptr(), lse2.data_ptr(), threads(num_threads),
    )  # fmt: skip
    return out, lse2


def _query_shape(q: Tensor) -> torch.Size:
    dtype_code("q", q)
    same_kind("q", q, q.dtype)
    if q.dim() != 3:
        refuse("q.shape", tuple(q.shape), "[tokens, heads, head_size]")
    head_size = q.shape[2]
    if head_size % 16 or not head_size:
        refuse("q.shape[2]", head_size, "a positive multiple of 16")
    if q.stride(2) != 1:
        refuse("q.stride", q.stride(), "a contiguous last dimension")
    return q.shape


def _result(name: str, given: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if given is None:
        return torch.empty(shape, dtype=dtype)
    exactly(name, given, shape, dtype)
    return given


def _slot_stride(name: str, cache: Tensor, dtype: torch.dtype, head_size: int) -> int:
    """Elements from one slot to the next of a pool whose slots are contiguous."""
    same_kind(name, cache, dtype)
    shape = cache.shape
    if len(shape) != 3 or shape[2] != head_size:
        refuse(f"{name}.shape", tuple(shape), f"[slots, kv_heads, {head_size}]")
    slot, head, item = cache.stride()
    if item != 1 or head != head_size or slot < shape[1] * head_size:
        refuse(
            f"{name}.stride", cache.stride(), f"(at least {shape[1] * head_size}, {head_size}, 1)"
        )
    return slot
