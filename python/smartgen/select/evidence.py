"""What a selector may look at, and what a selector is."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from smartgen.select.errors import MissingEvidence

Floats = npt.NDArray[np.float32]


class Evidence(Protocol):
    """One layer of one request.

    layer       of the whole model, counted from 0
    layers      of the whole model
    tokens      of the prompt, at least 1
    block_size  tokens per block

    Methods compute when called and return fresh or read-only float32 arrays; heads are query
    heads. Whoever gathers evidence derives from this class and overrides what it has: every other
    method raises MissingEvidence.
    """

    layer: int
    layers: int
    tokens: int
    block_size: int

    @property
    def blocks(self) -> int:
        """Blocks of the prompt; the last may be partial."""
        return -(-self.tokens // self.block_size)

    def window_mass(self, queries: int) -> Floats:
        """[queries, heads, blocks]: share of attention of each of the last prompt queries on each
        block, oldest query first; fewer rows when the prompt is shorter."""
        raise MissingEvidence(f"window_mass({queries})")

    def accumulated_mass(self) -> Floats:
        """[heads, blocks]: sum of the shares of attention of all prompt queries."""
        raise MissingEvidence("accumulated_mass")

    def viewers(self) -> Floats:
        """[blocks]: prompt queries that can see any token of the block, with a causal mask."""
        starts = np.arange(self.blocks, dtype=np.float32) * self.block_size
        return (self.tokens - starts).astype(np.float32)

    def digest_mass(self, kind: str) -> Floats:
        """[heads, blocks]: the last prompt query's share on each block, estimated from digests of
        this kind (smartgen.profile.DIGESTS)."""
        raise MissingEvidence(f"digest_mass({kind})")

    def decoded_mass(self) -> Floats:
        """[heads, blocks]: mean share of the tokens decoded later. Known to test harnesses only."""
        raise MissingEvidence("decoded_mass")


class Selector(Protocol):
    """Ranks the blocks of one layer.

    `score` returns float32 [blocks], higher is more important. Only finite scores rank: NaN and
    infinities of either sign come last. A selector holds no state of a request.
    """

    @property
    def name(self) -> str: ...

    def score(self, evidence: Evidence) -> Floats: ...
