"""Which blocks an answer token may see: a fixed set, or a fixed set plus what it asks for."""

import math

import torch
from torch import Tensor

from smartgen.ops import Backend
from smartgen.profiler.evidence import Digest
from smartgen.profiler.sample import Sample


class Fixed:
    """The same blocks for every token. chosen: bool [layers, blocks]."""

    def __init__(self, chosen: Tensor) -> None:
        self._chosen = chosen

    def blocks(self, layer: int, q: Tensor, scale: float) -> Tensor:
        return self._chosen[layer].expand(q.shape[0], -1)


class OneLayer:
    """Every layer sees everything but one. chosen: bool [blocks] of that layer."""

    def __init__(self, layer: int, chosen: Tensor) -> None:
        self._layer = layer
        self._chosen = chosen

    def blocks(self, layer: int, q: Tensor, scale: float) -> Tensor:
        chosen = self._chosen if layer == self._layer else torch.ones_like(self._chosen)
        return chosen.expand(q.shape[0], -1)


class OnDemand:
    """A fixed base, and in some layers each step's best blocks by digest; what was fetched stays.

    chosen   bool [layers, blocks]: resident from the start
    layers   the layers that may fetch
    top      blocks per step and layer among which absent ones are fetched
    fetched  per layer, number of blocks that each token fetched
    digest_bytes   of the summaries that decode needs beforehand
    """

    def __init__(
        self,
        sample: Sample,
        ops: Backend,
        chosen: Tensor,
        *,
        digest: str,
        layers: frozenset[int],
        top: int,
    ) -> None:
        self._resident = chosen.clone()
        self._top = top
        self._digests = {layer: Digest(sample, ops, layer, digest) for layer in sorted(layers)}
        self.fetched: dict[int, list[int]] = {layer: [] for layer in self._digests}
        # Only of blocks that are absent at first: for the others there is nothing to ask.
        self.digest_bytes = sum(
            digest.bytes * float((~chosen[layer]).float().mean())
            for layer, digest in self._digests.items()
        )

    def blocks(self, layer: int, q: Tensor, scale: float) -> Tensor:
        resident = self._resident[layer]
        if layer not in self._digests:
            return resident.expand(q.shape[0], -1)
        wanted = self._wanted(self._digests[layer].scores(q))
        seen = wanted.cummax(0).values | resident
        before = torch.cat([resident[None], seen[:-1]])
        self.fetched[layer] += (seen & ~before).sum(1).tolist()
        self._resident[layer] = seen[-1]
        return seen

    def _wanted(self, scores: Tensor) -> Tensor:
        """scores log2 [rows, heads, blocks] -> bool [rows, blocks]: the top blocks of each row.

        Heads are compared by the share of their own estimated weight, and a block counts by its best head.
        A score that is not finite spoils its own block only.
        """
        known = scores.masked_fill(~scores.isfinite(), -math.inf)
        shares = torch.softmax(known * math.log(2), dim=-1).nan_to_num(0.0).amax(1)
        top = shares.topk(min(self._top, shares.shape[1]), dim=1).indices
        return torch.zeros(shares.shape, dtype=torch.bool).scatter_(1, top, True)
