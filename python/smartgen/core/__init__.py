"""Plain data shared by every package: ids, KV geometry, runs, identity. No I/O, no clock."""

from smartgen.core.geometry import Destination, KVGeometry, Pages
from smartgen.core.identity import Identity
from smartgen.core.ids import Mode, Path, RequestKey
from smartgen.core.runs import Run, contiguous_pieces, mask_runs, merge_runs, split_run

__all__ = [
    "Destination",
    "Identity",
    "KVGeometry",
    "Mode",
    "Pages",
    "Path",
    "RequestKey",
    "Run",
    "contiguous_pieces",
    "mask_runs",
    "merge_runs",
    "split_run",
]
