"""Where the bytes of a page are: entries, page sizes and addresses.

An entry is one contiguous buffer of the KV pool in which page `p` starts at `p * page_bytes`.
Multi-head attention keeps two entries per layer, in the order K0 .. K(L-1), V0 .. V(L-1).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class KVGeometry:
    """Shape of one rank's KV pool.

    layers      number of layers on this rank
    page_size   tokens per page
    page_bytes  bytes of one page in each entry; `entries_per_layer * layers` long
    """

    layers: int
    page_size: int
    page_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"geometry.layers is {self.layers}, must be at least 1")
        if self.page_size < 1:
            raise ValueError(f"geometry.page_size is {self.page_size}, must be at least 1")
        if not self.page_bytes or len(self.page_bytes) % self.layers:
            raise ValueError(
                f"geometry.page_bytes has {len(self.page_bytes)} entries, "
                f"must be a multiple of {self.layers} layers"
            )
        if min(self.page_bytes) < 1:
            raise ValueError("geometry.page_bytes must be positive in every entry")

    @property
    def entries(self) -> int:
        return len(self.page_bytes)

    @property
    def entries_per_layer(self) -> int:
        return len(self.page_bytes) // self.layers

    def entries_of(self, layer: int) -> tuple[int, ...]:
        """The entries that together hold one layer: (layer, L + layer) for K and V."""
        return tuple(range(layer, len(self.page_bytes), self.layers))

    def layer_page_bytes(self, layer: int) -> int:
        """Bytes of one page of one layer, all its entries together."""
        return self._by_layer[layer]

    @cached_property
    def _by_layer(self) -> tuple[int, ...]:
        return tuple(
            sum(self.page_bytes[entry] for entry in self.entries_of(layer))
            for layer in range(self.layers)
        )

    @cached_property
    def token_page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(self.page_bytes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Destination:
    """Where one request goes on the decode node.

    session    name of the memory owner, as the transport addresses it
    endpoint   (host, port) of its control socket
    entries    base address of each entry of its KV pool
    pages      int32 [total]: destination page of each page position of the request
    """

    session: str
    endpoint: tuple[str, int]
    entries: tuple[int, ...]
    pages: Pages
