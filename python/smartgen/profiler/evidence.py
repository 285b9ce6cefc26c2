"""What selectors may look at, taken from a sample with the product's operators."""

from collections.abc import Callable

import torch
from torch import Tensor

from smartgen.ops import Backend
from smartgen.profiler.passes import WINDOW
from smartgen.profiler.sample import Sample
from smartgen.select import Evidence, Floats, MissingEvidence

_QUERIES_AT_ONCE = 256


class LayerEvidence(Evidence):
    """`smartgen.select.Evidence` for one layer of one sample; computed when first asked for."""

    def __init__(self, sample: Sample, ops: Backend, layer: int, layers: int) -> None:
        self.layer = layer
        self.layers = layers
        self.tokens = sample.tokens
        self.block_size = sample.block_size
        self._sample = sample
        self._ops = ops
        self._cached: dict[str, Floats] = {}

    def window_mass(self, queries: int) -> Floats:
        """[queries, heads, blocks]"""
        if queries > WINDOW:
            raise MissingEvidence(f"attention of the last {queries} queries ({WINDOW} are kept)")
        return self._once("window", lambda: self._mass(self._last(WINDOW)))[-queries:]

    def accumulated_mass(self) -> Floats:
        """[heads, blocks]"""
        prefill = self._sample.prefill
        if not prefill.keep_all:
            raise MissingEvidence("accumulated attention (only the last queries are kept)")
        return self._once("accumulated", self._accumulated)

    def digest_mass(self, kind: str) -> Floats:
        """[heads, blocks]"""
        return self._once(kind, lambda: self._digest_mass(kind))

    def decoded_mass(self) -> Floats:
        """[heads, blocks]: mean over the answer's tokens, under full KV."""

        def compute() -> Floats:
            sample = self._sample
            positions = self.tokens + torch.arange(len(sample.inputs))
            mass: Floats = self._mass(
                (sample.answer_q[self.layer], sample.answer_lse2[self.layer], positions)
            ).mean(0)
            return mass

        return self._once("decoded", compute)

    def _accumulated(self) -> Floats:
        """A few hundred queries at a time: the whole matrix is large for long prompts."""
        q, lse2, positions = self._last(self.tokens)
        parts = zip(*(x.split(_QUERIES_AT_ONCE) for x in (q, lse2, positions)), strict=True)
        total: Floats = sum(self._mass(part).sum(0) for part in parts)
        return total

    def _once(self, name: str, compute: Callable[[], Floats]) -> Floats:
        if name not in self._cached:
            found = self._cached[name] = compute()
            found.flags.writeable = False
        return self._cached[name]

    def _last(self, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        prefill = self._sample.prefill
        q, lse2 = prefill.q[self.layer][-queries:], prefill.lse2[self.layer][-queries:]
        return q, lse2, torch.arange(self.tokens - q.shape[0], self.tokens)

    def _mass(self, queries: tuple[Tensor, Tensor, Tensor]) -> Floats:
        kv = self._sample.kv
        q, lse2, positions = queries
        mass: Floats = self._ops.block_mass(
            q,
            lse2,
            positions,
            kv.k[self.layer],
            kv.slots,
            self.tokens,
            block_size=self.block_size,
            page_size=kv.page_size,
            scale=self._sample.scale,
        ).numpy()
        return mass

    def _digest_mass(self, kind: str) -> Floats:
        q, lse2, _ = self._last(1)
        scores = Digest(self._sample, self._ops, self.layer, kind).scores(q)
        shares: Floats = torch.exp2(scores - lse2[..., None])[0].numpy()
        return shares


class Digest:
    """Summary of every block of one layer, as it would travel ahead of absent blocks."""

    def __init__(self, sample: Sample, ops: Backend, layer: int, kind: str) -> None:
        self._ops = ops
        self._length = sample.tokens
        self._geometry = {"block_size": sample.block_size, "page_size": sample.kv.page_size}
        self._scale = sample.scale
        self._bounds = kind == "quest"
        k, slots = sample.kv.k[layer], sample.kv.slots
        if self._bounds:
            self.data = ops.block_bounds(k, slots, self._length, **self._geometry)
        else:
            sub_tokens = sample.block_size if kind == "mean" else int(kind.rpartition("-")[2])
            self.data = ops.block_digest(
                k,
                slots,
                self._length,
                sub_tokens=min(sub_tokens, sample.block_size),
                **self._geometry,
            )

    @property
    def bytes(self) -> int:
        return int(self.data.numel() * self.data.element_size())

    def scores(self, q: Tensor) -> Tensor:
        """q [rows, heads, size] -> log2 of each block's estimated weight, [rows, heads, blocks] float32."""
        score = self._ops.bound_scores if self._bounds else self._ops.digest_scores
        return score(
            q, self.data, self._length, block_size=self._geometry["block_size"], scale=self._scale
        )
