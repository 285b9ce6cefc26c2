"""The prefill side's agent: a queue of posts and the one thread that works on them.

The host's threads only post: each public method puts a tuple into a queue and returns. The thread
sleeps in that queue when no write is running, and looks at running writes every fraction of a
millisecond, as the pacer says. A post wakes it at once.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from smartgen.config import Settings
from smartgen.core import Destination, KVGeometry, Mode, Pages, RequestKey
from smartgen.metrics import NullSink, Sink
from smartgen.runtime.engine import SendingEngine
from smartgen.runtime.outbox import Outbox
from smartgen.runtime.recorder import Recorder
from smartgen.runtime.seams import ControlSender, PrefillCallbacks
from smartgen.runtime.snapshots import PrefillSnapshot
from smartgen.transfer import Aborted, AuxReady, Block, ChunkCommitted, LayerWritten, Pacing
from smartgen.transport.base import Transport

log = logging.getLogger(__name__)

POSTS_PER_TURN: Final = 512


class PrefillAgent:
    """Every public method may be called from any thread; none but `stop` and `snapshot` waits.

    transport         used by the agent's thread alone from `start` on, closed by `stop`
    write_deadline_s  a write that is not final by then fails its request; it stays followed
    debug             check every invariant after every step
    """

    def __init__(
        self,
        *,
        transport: Transport,
        control: ControlSender,
        geometry: KVGeometry,
        callbacks: PrefillCallbacks,
        clock: Callable[[], float] = time.monotonic,
        pacing: Pacing | None = None,
        sink: Sink | None = None,
        write_deadline_s: float = Settings.write_deadline_s,
        debug: bool = False,
    ) -> None:
        self._clock = clock
        self._transport = transport
        self._debug = debug
        self._recorder = Recorder(NullSink() if sink is None else sink)
        self._engine = SendingEngine(
            transport=transport,
            outbox=Outbox(control),
            geometry=geometry,
            callbacks=callbacks,
            recorder=self._recorder,
            clock=clock,
            pacing=Pacing() if pacing is None else pacing,
            write_deadline_s=write_deadline_s,
            debug=debug,
        )
        self._inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._stop_by: float | None = None
        self._thread = threading.Thread(target=self._run, name="smartgen-prefill", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- posts

    def open(
        self,
        key: RequestKey,
        destination: Destination,
        src_entries: Sequence[int],
        mode: Mode = Mode.LAYERWISE,
    ) -> None:
        """A decode node offered pages. `src_entries`: base address of each local pool entry.

        Must come before any other post of the key. Positions count from the first page of
        `destination.pages`.
        """
        self._inbox.put((self._open, key, self._clock(), destination, src_entries, mode))

    def layer_written(self, key: RequestKey, layer: int, start: int, src_pages: Pages) -> None:
        """This layer's KV of positions start .. start + n - 1 is in `src_pages` now.

        Whole pages only, each (layer, position) once. `src_pages` (int32 [n]) must not change
        later; one array may serve all layers of a chunk.
        """
        self._inbox.put((self._layer_written, key, self._clock(), layer, start, src_pages))

    def chunk_committed(self, key: RequestKey, start: int, src_pages: Pages, last: bool) -> None:
        """Authoritative pages of a chunk. Chunks follow one another from position 0 to the end.

        Call after the host settled the chunk's pages and before any of them can be reused.
        """
        self._inbox.put((self._chunk_committed, key, self._clock(), start, src_pages, last))

    def aux_ready(self, key: RequestKey, writes: Sequence[Block]) -> None:
        """Metadata as (src, dst, bytes), written after all KV. Once, after the last chunk."""
        self._inbox.put((self._aux_ready, key, self._clock(), tuple(writes)))

    def abort(self, key: RequestKey, reason: str) -> None:
        """Give up. Answered by `drained`, also when the request is not open."""
        self._inbox.put((self._abort, key, self._clock(), reason))

    # -- these wait

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Fail what is open, wait for running writes, end the thread. False if time ran out."""
        if not self._thread.is_alive():
            return True
        self._inbox.put((self._stop, None, self._clock(), timeout_s * 0.8))
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def snapshot(self, timeout_s: float = 1.0) -> PrefillSnapshot:
        """State of everything, taken between two turns. Raises TimeoutError."""
        if not self._thread.is_alive():
            return self._engine.snapshot()
        answer: queue.SimpleQueue[PrefillSnapshot] = queue.SimpleQueue()
        self._inbox.put((self._answer, None, self._clock(), answer))
        try:
            return answer.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"the prefill agent did not answer in {timeout_s} s") from None

    # -- the thread

    def _run(self) -> None:
        while self._stop_by is None or (self._engine.busy and self._clock() < self._stop_by):
            try:
                self._take_posts()
                self._engine.turn()
                if self._debug:
                    self._engine.check()
            except Exception:
                # Whatever this is, the other requests must go on.
                self._recorder.internal_error()
                log.exception("a turn of the prefill agent failed")
        self._transport.close()

    def _take_posts(self) -> None:
        patience = self._engine.patience()
        for _ in range(POSTS_PER_TURN):
            try:
                post = self._inbox.get(timeout=patience)
            except queue.Empty:
                return
            patience = 0.0
            handler, subject, at, *rest = post
            try:
                handler(subject, at, *rest)
            except Exception as error:
                log.error("a post for %s cannot be used", subject, exc_info=error)
                self._engine.break_request(subject, at, str(error))

    def _open(
        self,
        key: RequestKey,
        at: float,
        destination: Destination,
        src_entries: Sequence[int],
        mode: Mode,
    ) -> None:
        self._engine.open(key, at, destination, tuple(src_entries), mode)

    def _layer_written(
        self, key: RequestKey, at: float, layer: int, start: int, src_pages: Pages
    ) -> None:
        pages = np.asarray(src_pages, dtype=np.int32)
        self._engine.post(key, LayerWritten(at, layer=layer, start=start, src_pages=pages))

    def _chunk_committed(
        self, key: RequestKey, at: float, start: int, src_pages: Pages, last: bool
    ) -> None:
        pages = np.asarray(src_pages, dtype=np.int32)
        self._engine.post(key, ChunkCommitted(at, start=start, src_pages=pages, last=last))

    def _aux_ready(self, key: RequestKey, at: float, writes: tuple[Block, ...]) -> None:
        self._engine.post(key, AuxReady(at, writes=writes))

    def _abort(self, key: RequestKey, at: float, reason: str) -> None:
        self._engine.abort(key, Aborted(at, reason=reason))

    def _stop(self, _: None, at: float, wait_s: float) -> None:
        self._stop_by = at + wait_s
        self._engine.break_everything(at, "the server stops")

    def _answer(self, _: None, at: float, answer: "queue.SimpleQueue[PrefillSnapshot]") -> None:
        answer.put(self._engine.snapshot())
