"""What the running forward pass writes, told to the attention backend layer by layer.

The scheduler launches a forward synchronously, so one value set before `run_batch` describes it
until the next one. Each item names a request whose sender pushes layers, and the pages that this
chunk completes; pages of a running chunk belong to their request until the chunk is committed, so
their numbers may be taken here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class ChunkPages:
    """Positions `start ..` of one request and the source pages (int32) they lie in."""

    sender: Any
    start: int
    src_pages: npt.NDArray[np.int32]


_current: tuple[ChunkPages, ...] = ()


def layer_written(layer: int) -> None:
    """Called by the attention backend once the layer's K and V of this forward are in the pool."""
    for chunk in _current:
        chunk.sender.layer_written(layer, chunk.start, chunk.src_pages)


def before_finalize_bootstrap(queue: Any, req: Any) -> None:
    """Hook on PrefillBootstrapQueue.finalize_bootstrap, which then calls the sender's init."""
    note = getattr(req.disagg_kv_sender, "note_request", None)
    if note is not None:
        note(req, queue.scheduler.req_to_token_pool.req_to_token)


def before_run_batch(scheduler: Any, batch: Any, pp_proxy_tensors: Any = None) -> None:
    """Hook on Scheduler.run_batch."""
    global _current
    if not batch.forward_mode.is_extend() or batch.forward_mode.is_prebuilt():
        _current = ()
        return
    _current = tuple(
        chunk for req in batch.reqs if (chunk := _chunk_pages(scheduler, req)) is not None
    )


def _chunk_pages(scheduler: Any, req: Any) -> ChunkPages | None:
    sender = req.disagg_kv_sender
    if req.pending_bootstrap or not getattr(sender, "pushes_layers", False):
        return None
    page_size = scheduler.token_to_kv_pool_allocator.page_size
    prompt = len(req.origin_input_ids)
    end = min(req.extend_end, prompt)
    # A middle chunk's last, partial page is completed by the next chunk.
    end_page = -(-end // page_size) if end == prompt else end // page_size
    # A cached prefix is committed on its own, before the forward or with the chunk.
    start_page = max(req.start_send_idx, req.prefix_len) // page_size
    if end_page <= start_page:
        return None
    row = scheduler.req_to_token_pool.req_to_token[
        req.kv.req_pool_idx, start_page * page_size : end : page_size
    ]
    src_pages = (row[: end_page - start_page] // page_size).to("cpu").numpy().astype(np.int32)
    return ChunkPages(sender=sender, start=start_page, src_pages=src_pages)
