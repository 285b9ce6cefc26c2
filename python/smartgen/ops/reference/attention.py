"""Attention over a paged cache, and the merge of two partial results.

All log-sum-exp values are base 2: `lse2 = log2(sum(2^(logit * log2 e)))`, -inf for an empty set of keys.
"""

import math

import torch
from torch import Tensor


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
) -> tuple[Tensor, Tensor]:
    """Causal attention of fresh tokens over their cached prefix and themselves.

    q             [tokens, heads, head_size]   fresh tokens of all requests, one after the other
    k/v_cache     [slots, kv_heads, head_size] heads is a multiple of kv_heads; holds the fresh tokens already
    req_to_token  [requests, max_len] int32    slot of each position; positions of one page have consecutive slots
    rows          [batch]                      row of req_to_token of each request
    prefix_lens   [batch]                      tokens before the fresh ones
    seq_lens      [batch]                      tokens in all
    returns (out, lse2): [tokens, heads, head_size] of q's type, [tokens, heads] float32

    Slots past seq_lens are never read.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse2 = q.new_empty(q.shape[:2], dtype=torch.float32) if lse2 is None else lse2
    first = 0
    for row, prefix, length in zip(
        rows.tolist(), prefix_lens.tolist(), seq_lens.tolist(), strict=True
    ):
        last = first + length - prefix
        slots = slots_of(req_to_token[row], length, page_size)
        positions = torch.arange(prefix, length)
        visible = torch.arange(length)[None, :] <= positions[:, None]
        out[first:last], lse2[first:last] = _attend(
            q[first:last], k_cache[slots], v_cache[slots], visible, scale
        )
        first = last
    return out, lse2


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
) -> tuple[Tensor, Tensor]:
    """Attention of one query per request, q [batch, heads, head_size], over its whole cache.

    Other arguments and results as in `extend_attention`. Length 0 gives zeros and an lse2 of -inf.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse2 = q.new_empty(q.shape[:2], dtype=torch.float32) if lse2 is None else lse2
    for i, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        slots = slots_of(req_to_token[row], length, page_size)
        visible = torch.ones(1, length, dtype=torch.bool)
        out[i : i + 1], lse2[i : i + 1] = _attend(
            q[i : i + 1], k_cache[slots], v_cache[slots], visible, scale
        )
    return out, lse2


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
) -> tuple[Tensor, Tensor]:
    """Attention of one query per row, q [rows, heads, head_size], over a list of pages.

    pages        [rows, max_pages] int32   first slot of each listed page, in any order
    page_counts  [rows]                    pages listed; entries past them are never read
    lengths      [rows]                    tokens in all: every listed page is full except the last
    returns (out, lse2) as `decode_attention`; no pages give zeros and an lse2 of -inf
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse2 = q.new_empty(q.shape[:2], dtype=torch.float32) if lse2 is None else lse2
    for i, (count, length) in enumerate(zip(page_counts.tolist(), lengths.tolist(), strict=True)):
        slots = (pages[i, :count, None].long() + torch.arange(page_size)).flatten()[:length]
        visible = torch.ones(1, length, dtype=torch.bool)
        out[i : i + 1], lse2[i : i + 1] = _attend(
            q[i : i + 1], k_cache[slots], v_cache[slots], visible, scale
        )
    return out, lse2


def merge(out_a: Tensor, lse2_a: Tensor, out_b: Tensor, lse2_b: Tensor) -> tuple[Tensor, Tensor]:
    """Join attention over two disjoint sets of keys.

    out_*   [tokens, heads, head_size]  any float type, the same for both
    lse2_*  [tokens, heads] float32     base-2 log-sum-exp; -inf = empty set
    returns (out, lse2), same shapes and types; exactly the other side where one is empty
    """
    high = torch.maximum(lse2_a, lse2_b)
    weight_a, weight_b = torch.exp2(lse2_a - high), torch.exp2(lse2_b - high)
    total = weight_a + weight_b
    mixed = (
        out_a.float() * (weight_a / total)[..., None]
        + out_b.float() * (weight_b / total)[..., None]
    ).to(out_a.dtype)
    lse2 = high + torch.log2(total)
    empty_a, empty_b = lse2_a == -math.inf, lse2_b == -math.inf
    out = torch.where(empty_b[..., None], out_a, torch.where(empty_a[..., None], out_b, mixed))
    return out, torch.where(empty_b, lse2_a, torch.where(empty_a, lse2_b, lse2))


def slots_of(entries: Tensor, length: int, page_size: int) -> Tensor:
    """Slot of each of the first `length` positions; of every page only the first entry is read."""
    positions = torch.arange(length)
    offsets = positions % page_size
    return entries.long()[positions - offsets] + offsets


def logits2(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Base-2 logits [queries, heads, keys] float32 of q [queries, heads, size] and k [keys, kv_heads, size]."""
    keys = k.float().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return torch.einsum("qhd,khd->qhk", q.float(), keys) * (scale * math.log2(math.e))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """q [queries, heads, size], k and v [keys, kv_heads, size], visible [queries, keys]; float32 inside."""
    logits = logits2(q, k, scale).masked_fill(~visible[:, None, :], -math.inf)
    values = v.float().repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    lse2 = torch.logsumexp(logits * math.log(2), dim=-1) / math.log(2)
    weights = torch.exp2(logits - lse2[..., None])
    return torch.einsum("qhk,khd->qhd", weights, values).to(q.dtype), lse2
