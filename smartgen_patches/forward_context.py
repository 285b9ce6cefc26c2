"""What the running forward pass writes and asks, told by the attention backend layer by layer.

The scheduler launches a forward synchronously, so values set before `run_batch` describe it until
the next one: the pages that a chunk completes, for requests whose sender pushes layers, and the
rows of queries, for requests that take statistics. Pages of a running chunk belong to their request
until the chunk is committed, so their numbers may be taken here.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from smartgen.runtime import LayerRows, PromptStatistics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ChunkPages:
    """Positions `start ..` of one request and the source pages (int32) they lie in."""

    sender: Any
    start: int
    src_pages: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class ChunkRows:
    """One request's rows in the forward, and the slots of all its positions."""

    sender: Any
    rows: slice
    slots: torch.Tensor


_pages: tuple[ChunkPages, ...] = ()
_rows: tuple[ChunkRows, ...] = ()


def layer_written(layer: int) -> None:
    """Called by the attention backend once the layer's K and V of this forward are in the pool."""
    for chunk in _pages:
        chunk.sender.layer_written(layer, chunk.start, chunk.src_pages)


def layer_attended(
    layer: int, q: torch.Tensor, lse2: torch.Tensor, k_cache: torch.Tensor, scale: float
) -> None:
    """Called by the attention backend once the layer is computed, with all rows of the forward."""
    for chunk in _rows:
        statistics = chunk.sender.statistics
        if statistics is None:
            continue
        try:
            rows = LayerRows(
                layer=layer,
                q=q[chunk.rows],
                lse2=lse2[chunk.rows],
                k_cache=k_cache,
                slots=chunk.slots,
                scale=scale,
            )
            statistics.add(rows)
        except Exception:
            # Statistics are an extra: whatever this is, the forward must go on.
            logger.exception("smartgen: statistics of layer %d failed; given up", layer)
            chunk.sender.statistics_failed()


def before_finalize_bootstrap(queue: Any, req: Any) -> None:
    """Hook on PrefillBootstrapQueue.finalize_bootstrap, which then calls the sender's init."""
    note = getattr(req.disagg_kv_sender, "note_request", None)
    if note is not None:
        note(req, queue.scheduler.req_to_token_pool.req_to_token)


def before_run_batch(scheduler: Any, batch: Any, pp_proxy_tensors: Any = None) -> None:
    """Hook on Scheduler.run_batch."""
    global _pages, _rows
    if not batch.forward_mode.is_extend() or batch.forward_mode.is_prebuilt():
        _pages = _rows = ()
        return
    _pages = tuple(
        chunk for req in batch.reqs if (chunk := _chunk_pages(scheduler, req)) is not None
    )
    _rows = tuple(_chunk_rows(scheduler, batch))


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
    if req.prefix_len >= _most_cached(req) // page_size * page_size:
        # What follows was computed although the cache may hold it. If so, the commit replaces our
        # full pages by those of the cache: they go out then, once.
        start_page = max(start_page, prompt // page_size)
    if end_page <= start_page:
        return None
    row = scheduler.req_to_token_pool.req_to_token[
        req.kv.req_pool_idx, start_page * page_size : end : page_size
    ]
    src_pages = (row[: end_page - start_page] // page_size).to("cpu").numpy().astype(np.int32)
    return ChunkPages(sender=sender, start=start_page, src_pages=src_pages)


def _chunk_rows(scheduler: Any, batch: Any) -> Iterator[ChunkRows]:
    """Rows stand in the order of the requests; a mixed batch has decode's single rows among them."""
    gatherers = [_statistics_of(req) for req in batch.reqs]
    if not any(gatherers):
        return
    first = 0
    for req, statistics, count in zip(batch.reqs, gatherers, batch.extend_lens, strict=True):
        rows = slice(first, first + count)
        first = rows.stop
        if statistics is not None:
            statistics.begin(req.prefix_len, req.prefix_len + count)
            slots = scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
            yield ChunkRows(sender=req.disagg_kv_sender, rows=rows, slots=slots)


def _most_cached(req: Any) -> int:
    """Tokens of the prompt that its prefix in the cache may have at most."""
    statistics = _statistics_of(req)
    last = len(req.origin_input_ids) - 1
    return last if statistics is None else min(last, statistics.first)


def _statistics_of(req: Any) -> PromptStatistics | None:
    """None also for senders that are not ours, such as that of a health check."""
    return getattr(req.disagg_kv_sender, "statistics", None)
