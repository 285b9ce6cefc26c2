"""Paged attention over an NHD pool: the typed face of the attention kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from smartgen_kernel import _C
from smartgen_kernel._check import (
    DTYPES,
    check_group,
    exactly,
    index_bytes,
    query_shape,
    refuse,
    same_kind,
    slot_stride,
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
        q, k_cache, v_cache, "req_to_token", req_to_token, page_size, rows, prefix_lens, "seq_lens", seq_lens, None,
        page_size, scale, out, lse2, num_threads, isa,
    )  # fmt: skip


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
        q, k_cache, v_cache, "req_to_token", req_to_token, page_size, rows, None, "seq_lens", seq_lens, None, page_size,
        scale, out, lse2, num_threads, isa,
    )  # fmt: skip


def partial_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pages: Tensor,
    page_counts: Tensor,
    lengths: Tensor,
    *,
    page_size: int,
    scale: float,
    out: Tensor | None = None,
    lse2: Tensor | None = None,
    num_threads: int | None = None,
    isa: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of one query per row, q [rows, heads, head_size], over a list of pages.

    pages        [rows, max_pages] int32       first slot of each listed page, in any order
    page_counts  [rows] int32 or int64         pages listed; entries past them are never read
    lengths      [rows] int32 or int64         tokens in all: every listed page is full except the last

    Every other argument and the result are as in :func:`decode_attention`, whose bits it gives for the pages of a
    whole request in order.  No pages give zeros and a log-sum-exp of -inf.
    """
    if pages.dim() == 2 and q.dim() == 3 and pages.shape[0] != q.shape[0]:
        refuse("pages.shape[0]", pages.shape[0], f"{q.shape[0]} rows as q")
    return _attention(
        q, k_cache, v_cache, "pages", pages, 1, None, None, "lengths", lengths, page_counts, page_size, scale, out,
        lse2, num_threads, isa,
    )  # fmt: skip


def _attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table_name: str,
    table: Tensor,
    page_step: int,
    rows: Tensor | None,
    prefix_lens: Tensor | None,
    lengths_name: str,
    lengths: Tensor,
    page_counts: Tensor | None,
    page_size: int,
    scale: float,
    out: Tensor | None,
    lse2: Tensor | None,
    num_threads: int | None,
    isa: str | None,
) -> tuple[Tensor, Tensor]:
    """All forms: extend has prefix_lens; a table of listed pages has page_step 1, page_counts and no rows."""
    tokens, heads, head_size = query_shape(q)
    dtype = q.dtype
    q_token, q_head, _ = q.stride()
    k_slot = slot_stride("k_cache", k_cache, dtype, head_size)
    v_slot = slot_stride("v_cache", v_cache, dtype, head_size)
    slots, kv_heads, _ = k_cache.shape
    if v_cache.shape != k_cache.shape:
        refuse("v_cache.shape", tuple(v_cache.shape), f"{tuple(k_cache.shape)} as k_cache")
    check_group("k_cache", kv_heads, heads)
    same_kind(table_name, table, torch.int32)
    if table.dim() != 2 or (table.stride(1) != 1 and table.shape[1] > 1):
        refuse(f"{table_name}.shape", tuple(table.shape), "two dimensions, contiguous rows")
    if page_size < 1:
        refuse("page_size", page_size, "at least 1")

    batch = tokens if prefix_lens is None else lengths.numel()
    row_vector = _vector("rows", rows, batch)
    length_vector = _vector(lengths_name, lengths, batch)
    prefix_vector = _vector("prefix_lens", prefix_lens, batch)
    count_vector = _vector("page_counts", page_counts, batch)
    out = _result("out", out, (tokens, heads, head_size), dtype)
    lse2 = _result("lse2", lse2, (tokens, heads), torch.float32)
    _C.attention(
        kernels(isa), prefix_lens is not None, DTYPES[dtype], q.data_ptr(), q_token, q_head, k_cache.data_ptr(), k_slot,
        v_cache.data_ptr(), v_slot, slots, table.data_ptr(), table.stride(0), *table.shape, page_step, *row_vector,
        *prefix_vector, *length_vector, *count_vector, batch, tokens, heads, kv_heads, head_size, page_size, scale,
        out.data_ptr(), lse2.data_ptr(), threads(num_threads),
    )  # fmt: skip
    return out, lse2


def _vector(name: str, tensor: Tensor | None, length: int) -> tuple[int, int]:
    """Address and item size, of which the first is 0 where there is none."""
    return (0, 4) if tensor is None else (tensor.data_ptr(), index_bytes(name, tensor, length))


def _result(name: str, given: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if given is None:
        return torch.empty(shape, dtype=dtype)
    exactly(name, given, shape, dtype)
    return given
