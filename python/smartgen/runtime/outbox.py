"""Control messages on their way out: gathered per endpoint, sent in order, retried a little.

A report may be attached behind the messages of its request: it is released only when all of them
were handed to the host's sender, so that the host's own success never overtakes them.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from smartgen.core import RequestKey, Run, merge_runs
from smartgen.runtime.seams import ControlSender
from smartgen.transfer import TransferReport
from smartgen.wire import MAX_RUNS, Landed, Message, pack

log = logging.getLogger(__name__)

Endpoint = tuple[str, int]


@dataclass(slots=True)
class Flushed:
    """Outcome of one flush: reports to publish, and requests that could not be told."""

    reports: list[tuple[RequestKey, TransferReport]] = field(default_factory=list)
    unreachable: list[tuple[RequestKey, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Lane:
    landed: dict[tuple[RequestKey, int], list[Run]] = field(default_factory=dict)
    final: list[Message] = field(default_factory=list)
    reports: list[tuple[RequestKey, TransferReport]] = field(default_factory=list)
    keys: set[RequestKey] = field(default_factory=set)
    attempts: int = 0
    due: float = 0.0


class Outbox:
    """`interval_s` lets landed notes gather; a report makes its endpoint due at once."""

    def __init__(
        self,
        control: ControlSender,
        *,
        interval_s: float = 0.02,
        retry_s: float = 0.2,
        attempts: int = 3,
    ) -> None:
        self._control = control
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._attempts = attempts
        self._lanes: dict[Endpoint, _Lane] = {}

    def landed(
        self, at: float, endpoint: Endpoint, key: RequestKey, layer: int, runs: Iterable[Run]
    ) -> None:
        lane = self._lane(at, endpoint)
        lane.landed.setdefault((key, layer), []).extend(runs)
        lane.keys.add(key)

    def delivered(
        self,
        at: float,
        endpoint: Endpoint,
        key: RequestKey,
        message: Message,
        report: TransferReport,
    ) -> None:
        lane = self._lane(at, endpoint)
        lane.final.append(message)
        lane.reports.append((key, report))
        lane.keys.add(key)
        if lane.attempts == 0:
            lane.due = at

    @property
    def next_due(self) -> float | None:
        """When `flush` has something to do; None when there is nothing."""
        return min((lane.due for lane in self._lanes.values()), default=None)

    def flush(self, at: float) -> Flushed:
        """Send what is due. Never raises."""
        flushed = Flushed()
        for endpoint, lane in list(self._lanes.items()):
            if lane.due > at:
                continue
            try:
                self._control.send(endpoint, pack(_messages(lane)))
            except Exception as error:
                self._missed(at, endpoint, lane, error, flushed)
                continue
            del self._lanes[endpoint]
            flushed.reports += lane.reports
        return flushed

    def _missed(
        self, at: float, endpoint: Endpoint, lane: _Lane, error: Exception, flushed: Flushed
    ) -> None:
        lane.attempts += 1
        if lane.attempts < self._attempts:
            lane.due = at + self._retry_s
            return
        where = f"{endpoint[0]}:{endpoint[1]}"
        log.warning("decode node %s cannot be told what landed: %s", where, error)
        detail = f"control messages to {where} failed {lane.attempts} times: {error}"
        flushed.unreachable += [(key, detail) for key in sorted(lane.keys)]
        del self._lanes[endpoint]

    def _lane(self, at: float, endpoint: Endpoint) -> _Lane:
        lane = self._lanes.get(endpoint)
        if lane is None:
            lane = self._lanes[endpoint] = _Lane(due=at + self._interval_s)
        return lane


def _messages(lane: _Lane) -> Iterable[Message]:
    for (key, layer), runs in lane.landed.items():
        merged = merge_runs(runs)
        for first in range(0, len(merged), MAX_RUNS):
            yield Landed.of(key, layer, merged[first : first + MAX_RUNS])
    yield from lane.final
