"""Which blocks of a request matter: the typed face of the selection kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smartgen_kernel import _C
from smartgen_kernel._check import (
    DTYPES,
    check_group,
    dtype_code,
    exactly,
    index_bytes,
    query_shape,
    refuse,
    same_kind,
    slot_stride,
    threads,
)
from smartgen_kernel._isa import kernels


def block_mass(
    q: Tensor,
    lse2: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    slots: Tensor,
    length: int,
    *,
    block_size: int,
    page_size: int,
    scale: float,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """Share of each query's attention that falls on each block of one request. No values are read.

    q          [queries, heads, head_size]   of k_cache's type; head_size is a multiple of 16, the last dimension
                                             contiguous, heads a multiple of kv_heads
    lse2       [queries, heads] float32      base-2 log-sum-exp of each query's own (causal) attention
    positions  [queries] int32 or int64      a query sees keys 0..position; a negative one sees none
    k_cache    [slots, kv_heads, head_size]
    slots      [max_len] int32               slot of each position; of every page only the first entry is read
    length     tokens to cover, up to max_len; a position may lie past them
    block_size a multiple of page_size; the last block may be partial

    Returns [queries, heads, blocks] float32: ``2^(logit - lse2)``, summed over the block.  A key that is not finite
    spoils its own block, for the queries that see it, and nothing else.
    """
    queries, heads, _ = query_shape(q)
    exactly("lse2", lse2, (queries, heads), torch.float32)
    position_bytes = index_bytes("positions", positions, queries)
    keys = _block_keys(k_cache, slots, length, block_size, page_size, num_threads, q)
    check_group("k_cache", k_cache.shape[1], heads)
    out = torch.empty(queries, heads, -(-length // block_size))
    _C.block_mass(
        kernels(isa), keys, q.data_ptr(), *q.stride()[:2], lse2.data_ptr(), positions.data_ptr(), position_bytes,
        queries, heads, scale, out.data_ptr(),
    )  # fmt: skip
    return out


def block_digest(
    k_cache: Tensor,
    slots: Tensor,
    length: int,
    *,
    block_size: int,
    page_size: int,
    sub_tokens: int,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """Mean keys of sub-blocks of ``sub_tokens`` tokens, a divisor of block_size; other arguments as in
    :func:`block_mass`.

    Returns [blocks, block_size // sub_tokens, kv_heads, head_size] in k_cache's type, summed in float32.  A partial
    sub-block averages the tokens it has; one without tokens is zero.
    """
    keys = _block_keys(k_cache, slots, length, block_size, page_size, num_threads, k_cache)
    if sub_tokens < 1 or block_size % sub_tokens:
        refuse("sub_tokens", sub_tokens, f"a divisor of block_size = {block_size}")
    shape = (-(-length // block_size), block_size // sub_tokens, *k_cache.shape[1:])
    out = torch.empty(shape, dtype=k_cache.dtype)
    _C.block_digest(kernels(isa), keys, sub_tokens, out.data_ptr())
    return out


def block_bounds(
    k_cache: Tensor,
    slots: Tensor,
    length: int,
    *,
    block_size: int,
    page_size: int,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """Element-wise minimum (0) and maximum (1) of a block's keys: [blocks, 2, kv_heads, head_size], exact.

    Arguments as in :func:`block_mass`.  NaN stays NaN.
    """
    keys = _block_keys(k_cache, slots, length, block_size, page_size, num_threads, k_cache)
    out = torch.empty(-(-length // block_size), 2, *k_cache.shape[1:], dtype=k_cache.dtype)
    _C.block_bounds(kernels(isa), keys, out.data_ptr())
    return out


def digest_scores(
    q: Tensor,
    digest: Tensor,
    length: int,
    *,
    block_size: int,
    scale: float,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """Estimated un-normalised weight of each block of one request, from the mean keys of its sub-blocks.

    q       [rows, heads, head_size]            as in :func:`block_mass`
    digest  [blocks, subs, kv_heads, head_size] of q's type, contiguous; subs divides block_size
    length  tokens the digest covers, up to blocks * block_size

    Returns [rows, heads, blocks] float32: ``log2(sum over sub-blocks of tokens * 2^logit)``, -inf for a block with
    no tokens.  What is stored for a sub-block without tokens does not matter.
    """
    blocks, subs = digest.shape[:2] if digest.dim() == 4 else (0, 1)
    if subs < 1 or block_size % subs:
        refuse("digest.shape[1]", subs, f"a divisor of block_size = {block_size}")
    return _scores(
        False, "digest", q, digest, blocks, subs, length, block_size, scale, num_threads, isa
    )


def bound_scores(
    q: Tensor,
    bounds: Tensor,
    length: int,
    *,
    block_size: int,
    scale: float,
    num_threads: int | None = None,
    isa: str | None = None,
) -> Tensor:
    """Quest's upper bound on the logit of any key in the block, plus log2 of the block's tokens.

    bounds [blocks, 2, kv_heads, head_size] as :func:`block_bounds` gives them; scale is not negative; other arguments
    and the result as in :func:`digest_scores`.
    """
    blocks, two = bounds.shape[:2] if bounds.dim() == 4 else (0, 2)
    if two != 2:
        refuse("bounds.shape[1]", two, "2")
    if scale < 0:
        refuse("scale", scale, "at least 0")
    return _scores(
        True, "bounds", q, bounds, blocks, 1, length, block_size, scale, num_threads, isa
    )


def _scores(
    is_bounds: bool,
    name: str,
    q: Tensor,
    digest: Tensor,
    blocks: int,
    subs: int,
    length: int,
    block_size: int,
    scale: float,
    num_threads: int | None,
    isa: str | None,
) -> Tensor:
    rows, heads, head_size = query_shape(q)
    if digest.dim() != 4:
        refuse(f"{name}.shape", tuple(digest.shape), "four dimensions")
    exactly(name, digest, (*digest.shape[:3], head_size), q.dtype)
    kv_heads = digest.shape[2]
    check_group(name, kv_heads, heads)
    if block_size < 1:
        refuse("block_size", block_size, "at least 1")
    if not 0 <= length <= blocks * block_size:
        refuse("length", length, f"0..{blocks * block_size} ({blocks} blocks of {block_size})")
    out = torch.empty(rows, heads, blocks)
    _C.block_scores(
        kernels(isa), DTYPES[q.dtype], is_bounds, q.data_ptr(), *q.stride()[:2], digest.data_ptr(), rows, blocks,
        length, block_size, subs, heads, kv_heads, head_size, scale, out.data_ptr(), threads(num_threads),
    )  # fmt: skip
    return out


def _block_keys(
    k_cache: Tensor,
    slots: Tensor,
    length: int,
    block_size: int,
    page_size: int,
    num_threads: int | None,
    like: Tensor,
) -> Any:
    """The checked keys of one request; `like` says of which element type and head size they are."""
    if k_cache.dim() != 3:
        refuse("k_cache.shape", tuple(k_cache.shape), "[slots, kv_heads, head_size]")
    code = dtype_code("k_cache", k_cache)
    count, kv_heads, head_size = k_cache.shape
    if head_size % 16 or not head_size:
        refuse("k_cache.shape[2]", head_size, "a positive multiple of 16")
    k_slot = slot_stride("k_cache", k_cache, like.dtype, like.shape[2])
    same_kind("slots", slots, torch.int32)
    if slots.dim() != 1 or not slots.is_contiguous():
        refuse("slots.shape", tuple(slots.shape), "[max_len], contiguous")
    if not 0 <= length <= slots.shape[0]:
        refuse("length", length, f"0..{slots.shape[0]} (entries of slots)")
    if page_size < 1:
        refuse("page_size", page_size, "at least 1")
    if block_size < 1 or block_size % page_size:
        refuse("block_size", block_size, f"a positive multiple of page_size = {page_size}")
    return _C.BlockKeys(
        code, k_cache.data_ptr(), k_slot, count, slots.data_ptr(), length, block_size, page_size, kv_heads, head_size,
        threads(num_threads),
    )  # fmt: skip
