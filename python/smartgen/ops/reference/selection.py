"""Which blocks of a request matter: exact shares of a few queries, digests of keys, and scores by digest.

A block is `block_size` tokens, a multiple of `page_size`; the last one may be partial. `slots` is one row of
req_to_token, of which only each page's first entry is read. Logits and scores are base 2. A key that is
not finite spoils what is said of its own block, and nothing else.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from smartgen.ops.reference.attention import logits2, slots_of


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
) -> Tensor:
    """Share of each query's attention that falls on each block of one request. No values are read.

    q          [queries, heads, head_size]   of k_cache's type; heads is a multiple of kv_heads
    lse2       [queries, heads] float32      log-sum-exp of each query's own (causal) attention
    positions  [queries] int64               a query sees keys 0..position; a negative one sees none
    k_cache    [slots, kv_heads, head_size]
    slots      [max_len] int32
    length     tokens to cover, up to max_len; a position may lie past them
    returns    [queries, heads, blocks] float32: 2^(logit - lse2), summed over the block
    """
    keys = k_cache[slots_of(slots, length, page_size)]
    seen = torch.arange(length) <= positions[:, None]
    shares = torch.exp2(logits2(q, keys, scale) - lse2[..., None])
    shares = shares.masked_fill(~seen[:, None, :], 0.0)
    rest = -length % block_size
    return F.pad(shares, (0, rest)).unflatten(-1, (-1, block_size)).sum(dim=-1)


def block_digest(
    k_cache: Tensor,
    slots: Tensor,
    length: int,
    *,
    block_size: int,
    page_size: int,
    sub_tokens: int,
) -> Tensor:
    """Mean keys of sub-blocks of `sub_tokens` tokens, a divisor of block_size.

    Returns [blocks, block_size // sub_tokens, kv_heads, head_size] in k_cache's type. A partial sub-block
    averages the tokens it has; one without tokens is zero.
    """
    keys = k_cache[slots_of(slots, length, page_size)].float()
    rest = -length % block_size
    sums = F.pad(keys, (0, 0, 0, 0, 0, rest)).unflatten(0, (-1, sub_tokens)).sum(dim=1)
    counts = _tokens(sums.shape[0], sub_tokens, length).clamp(min=1)
    means = (sums / counts[:, None, None]).to(k_cache.dtype)
    return means.unflatten(0, (-1, block_size // sub_tokens))


def block_bounds(
    k_cache: Tensor, slots: Tensor, length: int, *, block_size: int, page_size: int
) -> Tensor:
    """Element-wise minimum and maximum of a block's keys (Quest, Tang et al. 2024).

    Returns [blocks, 2, kv_heads, head_size] in k_cache's type, 0 = minimum, 1 = maximum, over the tokens the block has.
    """
    keys = k_cache[slots_of(slots, length, page_size)]
    repeated = torch.arange(length + -length % block_size).clamp(max=length - 1)
    parts = keys[repeated].unflatten(0, (-1, block_size))
    return torch.stack((parts.amin(dim=1), parts.amax(dim=1)), dim=1)


def quantize_digest(digest: Tensor) -> tuple[Tensor, Tensor]:
    """A digest in symmetric 8 bit: values int8 like it, and one float32 scale per vector [blocks, subs, kv_heads].

    `values * scales` is off by at most half a scale.
    """
    vectors = digest.float()
    scales = vectors.abs().amax(dim=-1) / 127
    steps = torch.where(scales > 0, scales, 1.0)[..., None]
    return (vectors / steps).round().to(torch.int8), scales


def dequantize_digest(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The digest in the type of the queries that will meet it."""
    return (values * scales[..., None]).to(dtype)


def digest_scores(
    q: Tensor, digest: Tensor, length: int, *, block_size: int, scale: float
) -> Tensor:
    """Estimated un-normalised weight of each block of one request, from the mean keys of its sub-blocks.

    q       [rows, heads, head_size]            of the digest's type; heads is a multiple of kv_heads
    digest  [blocks, subs, kv_heads, head_size] as `block_digest` gives it
    length  tokens the digest covers
    returns [rows, heads, blocks] float32: log2(sum over sub-blocks of tokens * 2^logit), so that
            2^(score - lse2) estimates `block_mass`; -inf for a block with no tokens
    """
    blocks, subs = digest.shape[:2]
    tokens = _tokens(blocks * subs, block_size // subs, length)
    logits = logits2(q, digest.flatten(0, 1), scale) + tokens.log2()
    logits = logits.masked_fill(tokens == 0, -math.inf).unflatten(-1, (blocks, subs))
    return torch.logsumexp(logits * math.log(2), dim=-1) / math.log(2)


def bound_scores(
    q: Tensor, bounds: Tensor, length: int, *, block_size: int, scale: float
) -> Tensor:
    """Quest's upper bound on the logit of any key in the block, plus log2 of the block's tokens.

    bounds [blocks, 2, kv_heads, head_size] as `block_bounds` gives them; scale is not negative; the rest as in
    `digest_scores`, whose score it never falls below.
    """
    low, high = bounds.unbind(1)
    tokens = _tokens(bounds.shape[0], block_size, length)
    top = logits2(q.clamp(min=0), high, scale) + logits2(q.clamp(max=0), low, scale)
    return (top + tokens.log2()).masked_fill(tokens == 0, -math.inf)


def _tokens(count: int, size: int, length: int) -> Tensor:
    """Tokens in each of `count` parts of `size` tokens, when there are `length` in all."""
    return (length - torch.arange(count) * size).clamp(0, size)
