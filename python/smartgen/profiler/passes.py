"""Three ways through the model's attention: prefill, one pass over known answer tokens, and single steps.

A pass over known tokens is exact, not a shortcut: within a layer the queries of all answer tokens are known at
once, and each attends to its own list of pages, so the result is that of decoding them one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from smartgen.ops import Backend
from smartgen.profiler.cache import PagedKv

WINDOW = 64  # most last prompt queries that a selector may ask for


class Visible(Protocol):
    """Which blocks of the prompt each query may see."""

    def blocks(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """q [rows, heads, size] of consecutive answer tokens -> bool [rows, blocks]."""
        ...


@dataclass(kw_only=True)
class Prefill:
    """Causal attention of the prompt; keeps each layer's last queries (or all) and their log-sum-exp."""

    ops: Backend
    kv: PagedKv
    tokens: int
    keep_all: bool = False
    q: list[Tensor] = field(default_factory=list)
    lse2: list[Tensor] = field(default_factory=list)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.kv.write(layer, 0, k, v)
        out, lse2 = self.ops.extend_attention(
            q.contiguous(),
            self.kv.k[layer],
            self.kv.v[layer],
            self.kv.slots[None],
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            torch.tensor([self.tokens]),
            page_size=self.kv.page_size,
            scale=scale,
        )
        kept = slice(None) if self.keep_all else slice(-WINDOW, None)
        self.q.append(q[kept].contiguous())
        self.lse2.append(lse2[kept].contiguous())
        return out


@dataclass(kw_only=True)
class Rows:
    """Answer tokens at positions `start` .., each over the prompt blocks it may see and the answer so far.

    tokens    length of the prompt
    visible   None = every block
    keep      keeps each layer's queries and their log-sum-exp in q and lse2
    """

    ops: Backend
    kv: PagedKv
    tokens: int
    start: int
    block_size: int
    visible: Visible | None = None
    keep: bool = False
    q: list[Tensor] = field(default_factory=list)
    lse2: list[Tensor] = field(default_factory=list)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.kv.write(layer, self.start, k, v)
        q = q.contiguous()
        pages, counts, lengths = self._pages(layer, q, scale)
        out, lse2 = self.ops.partial_attention(
            q,
            self.kv.k[layer],
            self.kv.v[layer],
            pages,
            counts,
            lengths,
            page_size=self.kv.page_size,
            scale=scale,
        )
        if self.keep:
            self.q.append(q)
            self.lse2.append(lse2)
        return out

    def _pages(self, layer: int, q: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Page list of each row: selected whole prompt pages, then the pages that hold the rest."""
        page = self.kv.page_size
        rows = q.shape[0]
        whole = self.tokens // page
        last = (self.start + torch.arange(rows)) // page
        seen = torch.zeros(rows, int(last[-1]) + 1, dtype=torch.bool)
        if self.visible is None:
            seen[:, :whole] = True
        else:
            blocks = self.visible.blocks(layer, q, scale)
            seen[:, :whole] = blocks.repeat_interleave(self.block_size // page, dim=1)[:, :whole]
        seen[:, whole:] = torch.arange(whole, seen.shape[1])[None] <= last[:, None]
        counts = seen.sum(1)
        # A stable sort moves the visible pages of each row to its front, in order.
        order = torch.argsort(~seen, dim=1, stable=True)[:, : int(counts.max())]
        lengths = counts * page - (page - 1 - (self.start + torch.arange(rows)) % page)
        return (order * page).to(torch.int32), counts, lengths


def block_count(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def blocks_mask(chosen: Sequence[int], blocks: int) -> Tensor:
    """bool [blocks]."""
    mask = torch.zeros(blocks, dtype=torch.bool)
    mask[list(chosen)] = True
    return mask
