"""Checksums of a request's KV, for `--smartgen-debug`: both servers report what they hold.

One number per layer over every byte of every page of the prompt, in position order, so equal
numbers on prefill and decode mean that each layer arrived whole and in place.
"""

import ctypes
import zlib
from typing import Any

import numpy as np


def kv_digest(kv_args: Any, req_to_token: Any, row: int, tokens: int) -> list[int]:
    """CRC-32 of each layer's K and V for positions 0 .. tokens - 1 of one request's row.

    Bytes behind the prompt in its last page are left out: decode appends there.
    """
    page_size = kv_args.page_size
    slots = req_to_token[row, :tokens:page_size].to("cpu").numpy()
    pages = (slots // page_size).astype(np.int64).tolist()
    layers = len(kv_args.kv_data_ptrs) // 2
    return [
        _crc(
            [(kv_args.kv_data_ptrs[e], kv_args.kv_item_lens[e]) for e in (layer, layers + layer)],
            pages,
            page_size,
            tokens,
        )
        for layer in range(layers)
    ]


def _crc(entries: list[tuple[int, int]], pages: list[int], page_size: int, tokens: int) -> int:
    crc = 0
    for base, page_bytes in entries:
        left = tokens
        for page in pages:
            nbytes = page_bytes * min(left, page_size) // page_size
            crc = zlib.crc32(ctypes.string_at(base + page * page_bytes, nbytes), crc)
            left -= page_size
    return crc
