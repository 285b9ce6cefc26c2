"""What waits for one link: most urgent path first, requests of a path in turn.

Within a request and path, first in is first out. Every operation is O(1) in the number of spans,
`drop` is O(paths).
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from smartgen.core import Path, RequestKey, Run
from smartgen.transfer.events import Span

_ORDER = sorted(Path, key=lambda path: path.rank)


class Turn(NamedTuple):
    """The next part of a span, and whose it is."""

    key: RequestKey
    span: Span


class LinkQueue:
    """Spans of all requests that share one link."""

    def __init__(self) -> None:
        self._lanes: dict[Path, OrderedDict[RequestKey, deque[Span]]] = {
            path: OrderedDict() for path in _ORDER
        }
        self._spans = 0
        self._bytes = 0

    def __len__(self) -> int:
        """Spans that wait; a span that was cut counts until its last part is taken."""
        return self._spans

    @property
    def nbytes(self) -> int:
        return self._bytes

    def push(self, key: RequestKey, spans: Iterable[Span]) -> None:
        for span in spans:
            self._lanes[span.path].setdefault(key, deque()).append(span)
            self._spans += 1
            self._bytes += span.run.length * span.page_bytes

    def pop(self, *, max_bytes: int, max_pages: int) -> Turn | None:
        """Take the next span, cut at a page to fit both limits, but never below one page."""
        for path in _ORDER:
            lane = self._lanes[path]
            if lane:
                break
        else:
            return None
        key, spans = next(iter(lane.items()))
        span = spans[0]
        fit = max(1, min(max_pages, max_bytes // span.page_bytes))
        run = span.run
        if run.length > fit:
            taken = span._replace(run=Run(run.start, run.start + fit))
            spans[0] = span._replace(run=Run(run.start + fit, run.stop))
        else:
            taken = spans.popleft()
            self._spans -= 1
        self._bytes -= taken.run.length * taken.page_bytes
        if spans:
            lane.move_to_end(key)
        else:
            del lane[key]
        return Turn(key, taken)

    def drop(self, key: RequestKey) -> int:
        """Forget all spans of a request; returns their bytes."""
        dropped = 0
        for lane in self._lanes.values():
            spans = lane.pop(key, None)
            if spans is not None:
                self._spans -= len(spans)
                dropped += sum(span.run.length * span.page_bytes for span in spans)
        self._bytes -= dropped
        return dropped

    def check(self) -> None:
        """Assert that the sums are those of the spans and no lane keeps an empty request."""
        queued = [deq for lane in self._lanes.values() for deq in lane.values()]
        assert all(queued), "a request without spans is in line"
        assert self._spans == sum(len(spans) for spans in queued)
        assert self._bytes == sum(s.run.length * s.page_bytes for deq in queued for s in deq)
