"""Clients that ask servers and measure the answers; used by the quick start and by benchmarks.

`smartgen.client.chat` is imported by itself: the OpenAI library takes a second to load.
"""

from smartgen.client.counters import KV_BYTES, kv_bytes_by_path, sum_by_label
from smartgen.client.dual import Answer, DualClient
from smartgen.client.errors import RequestFailed
from smartgen.client.timing import Timing, timing

__all__ = [
    "KV_BYTES",
    "Answer",
    "DualClient",
    "RequestFailed",
    "Timing",
    "kv_bytes_by_path",
    "sum_by_label",
    "timing",
]
