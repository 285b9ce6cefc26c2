"""What a prompt's last queries look at: scores of its KV blocks, layer by layer while it is computed.

The attention backend hands over each layer's queries with their log-sum-exp, chunk by chunk. Only
the last `window` positions of the prompt count, and where those lie is known from the start: their
queries wait in a buffer of that size until the last chunk is here, however short it is. Then the
keys of the whole prompt, cached ones included, are in the pool, and the layer is scored at once.
"""

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from smartgen.ops import Backend
from smartgen.select import Evidence, Floats, MissingEvidence, Selector, score_layers

WINDOW: Final = 32
MOST_WINDOW: Final = 64
SELECTOR: Final = "window-16-max"
BLOCK_TOKENS: Final = 32


@dataclass(frozen=True, kw_only=True)
class StatisticsSpec:
    """How a server takes statistics; the same for all its requests.

    layers      of the model
    block_size  tokens per block, a multiple of page_size
    window      last prompt queries that are kept, 1..MOST_WINDOW; the selector may ask for fewer
    """

    layers: int
    page_size: int
    block_size: int
    selector: Selector
    ops: Backend
    window: int = WINDOW

    def __post_init__(self) -> None:
        if not 1 <= self.window <= MOST_WINDOW:
            raise ValueError(f"a window of {self.window} queries, must be 1..{MOST_WINDOW}")
        if self.block_size < 1 or self.block_size % self.page_size:
            raise ValueError(
                f"blocks of {self.block_size} tokens are not whole pages of {self.page_size}"
            )


@dataclass(frozen=True, kw_only=True)
class LayerRows:
    """One layer of one chunk: the queries as attention got them, and where the prompt's keys are.

    q        [rows, heads, head_size]         after the rotary embedding; the chunk's rows alone
    lse2     [rows, heads] float32            log-sum-exp of each query's own attention, base 2
    k_cache  [slots, kv_heads, head_size]     holds the chunk's keys already
    slots    [max_len] int32                  the request's row of req_to_token
    """

    layer: int
    q: Tensor
    lse2: Tensor
    k_cache: Tensor
    slots: Tensor
    scale: float


class PromptStatistics:
    """Statistics of one prompt of `tokens` tokens. One thread; owns nothing but memory.

    first    position of the first query that counts: it and all later ones must be computed here,
             not taken from a cache, or fewer queries vote
    seconds  spent in `add` so far
    """

    def __init__(self, spec: StatisticsSpec, tokens: int) -> None:
        self.first = max(0, tokens - spec.window)
        self.seconds = 0.0
        self._spec = spec
        self._tokens = tokens
        self._start = self._stop = self._known = 0
        self._kept: _Kept | None = None
        self._scores = np.empty((0, 0), dtype=np.float32)
        self._unscored = spec.layers

    def begin(self, start: int, stop: int) -> None:
        """The next rows are positions start .. stop - 1, layer by layer.

        A chunk that does not follow the one before (the request was taken back and starts again,
        from whatever is cached by then) forgets what that one left. Positions behind the prompt
        are nobody's queries.
        """
        if start < self._tokens:
            if start != self._stop:
                self._known = start
            self._stop = min(stop, self._tokens)
            self._unscored = self._spec.layers
        self._start = start

    def add(self, rows: LayerRows) -> None:
        """One layer of the chunk announced last."""
        began = time.perf_counter()
        if max(self._start, self.first) < self._stop:
            self._add(rows)
        self.seconds += time.perf_counter() - began

    @property
    def scores(self) -> Floats | None:
        """[layers, blocks] float32, higher is more important; None until the last chunk is over."""
        return None if self._unscored else self._scores

    def _add(self, rows: LayerRows) -> None:
        if self._stop < self._tokens:
            self._keep(rows)
            return
        first = max(self.first, self._known)
        if first < self._start:
            kept = self._keep(rows)
            q, lse2 = kept.since(rows.layer, first - self.first)
        else:
            q, lse2 = self._fresh(rows)
        evidence = _Window(
            layer=rows.layer,
            layers=self._spec.layers,
            tokens=self._tokens,
            block_size=self._spec.block_size,
            spec=self._spec,
            rows=rows,
            q=q,
            lse2=lse2,
        )
        if self._unscored == self._spec.layers:
            self._scores = np.empty((self._spec.layers, evidence.blocks), dtype=np.float32)
        self._scores[rows.layer] = score_layers(self._spec.selector, [evidence])[0]
        self._unscored -= 1
        if not self._unscored:
            self._kept = None

    def _fresh(self, rows: LayerRows) -> tuple[Tensor, Tensor]:
        """The chunk's own rows that count; what a batch holds behind the chunk is cut off."""
        part = slice(max(self.first, self._start) - self._start, self._stop - self._start)
        return rows.q[part], rows.lse2[part]

    def _keep(self, rows: LayerRows) -> "_Kept":
        q, lse2 = self._fresh(rows)
        if self._kept is None:
            length = self._tokens - self.first
            self._kept = _Kept(
                q=q.new_empty((self._spec.layers, length, *q.shape[1:])),
                lse2=lse2.new_empty((self._spec.layers, length, *lse2.shape[1:])),
            )
        at = max(self.first, self._start) - self.first
        self._kept.q[rows.layer, at : at + len(q)] = q
        self._kept.lse2[rows.layer, at : at + len(q)] = lse2
        return self._kept


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Queries that count, of all layers: q [layers, window, heads, head_size], lse2 [layers, window, heads]."""

    q: Tensor
    lse2: Tensor

    def since(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        return self.q[layer, at:], self.lse2[layer, at:]


@dataclass(kw_only=True)
class _Window(Evidence):
    """Evidence of one layer: the queries q and lse2, of which the last is the prompt's last."""

    layer: int
    layers: int
    tokens: int
    block_size: int
    spec: StatisticsSpec
    rows: LayerRows
    q: Tensor
    lse2: Tensor

    def window_mass(self, queries: int) -> Floats:
        if queries > self.spec.window:
            raise MissingEvidence(f"window_mass({queries}) of more than {self.spec.window} queries")
        q, lse2 = self.q[-queries:].contiguous(), self.lse2[-queries:].contiguous()
        mass: Floats = self.spec.ops.block_mass(
            q,
            lse2,
            torch.arange(self.tokens - len(q), self.tokens),
            self.rows.k_cache,
            self.rows.slots,
            self.tokens,
            block_size=self.block_size,
            page_size=self.spec.page_size,
            scale=self.rows.scale,
        ).numpy()
        return mass
