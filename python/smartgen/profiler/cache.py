"""The KV of one prompt and its answer, paged as on a server.

Slot and position are the same number here: the operators see an ordinary page table whose pages happen to be
in order, so what they compute is what they compute in a server.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """layers, kv_heads and head_size of the model; dtype of the cache; tokens per page."""

    layers: int
    kv_heads: int
    head_size: int
    page_size: int
    dtype: torch.dtype


class PagedKv:
    """k, v: per layer [slots, kv_heads, head_size]; slots: int32 [slots], the page table's one row."""

    def __init__(self, shape: CacheShape, tokens: int) -> None:
        pages = -(-tokens // shape.page_size)
        size = (pages * shape.page_size, shape.kv_heads, shape.head_size)
        self.page_size = shape.page_size
        self.slots = torch.arange(size[0], dtype=torch.int32)
        self.k = [torch.zeros(size, dtype=shape.dtype) for _ in range(shape.layers)]
        self.v = [torch.zeros(size, dtype=shape.dtype) for _ in range(shape.layers)]

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """k, v [tokens, kv_heads, head_size] of the positions from `start` on."""
        self.k[layer][start : start + k.shape[0]] = k
        self.v[layer][start : start + v.shape[0]] = v
