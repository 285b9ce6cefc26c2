"""Counts what happened on the prefill side, for snapshots and for metrics at once."""

from collections.abc import Iterable
from dataclasses import replace

from smartgen.core import Mode
from smartgen.metrics import Sink, catalog
from smartgen.runtime.links import Link
from smartgen.runtime.seams import Failure
from smartgen.runtime.snapshots import PrefillCounters
from smartgen.transfer import TransferReport


class Recorder:
    def __init__(self, sink: Sink) -> None:
        self.counters = PrefillCounters()
        self._sink = sink

    def opened(self, mode: Mode) -> None:
        self._add(opened=1)
        self._sink.count(catalog.REQUESTS, mode=mode.value)

    def delivered(self, report: TransferReport) -> None:
        self._add(delivered=1)
        for path, nbytes in report.bytes_by_path:
            self._sink.count(catalog.SENT_BYTES, nbytes, path=path.label)
        self._sink.count(catalog.RESENT_BYTES, report.resent_bytes)
        self._sink.count(catalog.OVERLAPPED_BYTES, report.overlapped_bytes)
        self._sink.observe(catalog.TRANSFER_SECONDS, report.transfer_s)
        self._sink.observe(catalog.TAIL_SECONDS, report.tail_s)

    def failed(self, failure: Failure) -> None:
        self._add(failed=1)
        self._sink.count(catalog.FAILURES, reason=failure.kind.value)

    def aborted(self) -> None:
        self._add(aborted=1)
        self._sink.count(catalog.ABORTS)

    def unknown_post(self) -> None:
        self._add(unknown_posts=1)

    def internal_error(self) -> None:
        self._add(internal_errors=1)

    def gauges(self, links: Iterable[Link]) -> None:
        links = tuple(links)
        self._sink.gauge(catalog.IN_FLIGHT_BYTES, sum(k.pacer.in_flight_bytes for k in links))
        self._sink.gauge(catalog.QUEUED_BYTES, sum(k.queue.nbytes for k in links))
        latest = max(links, key=lambda link: link.used_at, default=None)
        if latest is not None and latest.pacer.rate_bytes_per_s is not None:
            self._sink.gauge(catalog.LINK_RATE, latest.pacer.rate_bytes_per_s)

    def _add(self, **more: int) -> None:
        now = {name: getattr(self.counters, name) + count for name, count in more.items()}
        self.counters = replace(self.counters, **now)
