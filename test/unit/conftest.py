"""Small shapes and helpers the unit tests share, handed out as fixtures."""

from collections.abc import Callable

import numpy as np
import pytest
from smartgen.core import Destination, KVGeometry, RequestKey
from smartgen.transfer import SenderMachine

KEY = RequestKey(7, 1)


@pytest.fixture
def key() -> RequestKey:
    return KEY


@pytest.fixture
def geometry() -> KVGeometry:
    """Two layers; pages of 10 bytes in K and 20 in V."""
    return KVGeometry(layers=2, page_size=4, page_bytes=(10, 10, 20, 20))


@pytest.fixture
def make_sender(geometry: KVGeometry) -> Callable[..., SenderMachine]:
    def make(dst_pages: list[int], key: RequestKey = KEY) -> SenderMachine:
        destination = Destination(
            session="d:1",
            endpoint=("d", 2),
            entries=(10_000, 20_000, 30_000, 40_000),
            pages=np.array(dst_pages, dtype=np.int32),
        )
        return SenderMachine(
            key=key,
            geometry=geometry,
            src_entries=(1_000, 2_000, 3_000, 4_000),
            destination=destination,
        )

    return make
