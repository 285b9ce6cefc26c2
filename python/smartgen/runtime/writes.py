"""Running writes: from the blocks of a machine's write to the last status of its descriptors.

Owns the transport's ids. What the end of a write means for its request is the engine's business.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from smartgen.runtime.links import Link, LinkWrite
from smartgen.runtime.recorder import Recorder
from smartgen.transfer import Block
from smartgen.transport.base import Completion, Transport, TransportError

log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """A descriptor of `write` became final. `broke`: it is the write's first one that failed."""

    write: LinkWrite
    broke: bool


class Writes:
    """All methods are called from one thread; none waits."""

    def __init__(self, transport: Transport, recorder: Recorder) -> None:
        self._transport = transport
        self._recorder = recorder
        self._running: dict[int, tuple[Link, int]] = {}  # transport id -> link, ticket

    def __len__(self) -> int:
        """Descriptors that are not final."""
        return len(self._running)

    def launch(self, write: LinkWrite, blocks: Iterable[Block]) -> None:
        """Submit `blocks`. Where the transport stops taking them, `write.failure` says why.

        The ones it took by then are followed to their end, whatever happened.
        """
        link = write.request.link
        ids: list[int] = []
        try:
            for src, dst, nbytes in blocks:
                ids.append(self._transport.submit(link.session, src, dst, nbytes))
        except TransportError as error:
            write.failure = str(error)
        except Exception as error:
            self._recorder.internal_error()
            log.exception("request %s: the transport raised", write.request.key)
            write.failure = f"the transport raised {type(error).__name__}: {error}"
        if ids:
            write.descriptors = write.unfinished = len(ids)
            ticket = link.launch(write)
            for transport_id in ids:
                self._running[transport_id] = (link, ticket)

    def poll(self, now: float) -> Iterator[Progress]:
        """What became final since the last call. A write that is over is settled on its link."""
        for completion in self._transport.poll():
            yield self._completed(completion, now)

    def _completed(self, completion: Completion, now: float) -> Progress:
        link, ticket = self._running.pop(completion.write_id)
        write = link.writes[ticket]
        write.unfinished -= 1
        broke = not completion.ok and not write.failure
        if broke:
            write.failure = completion.reason
        if not write.unfinished:
            link.settle(ticket, now)
        return Progress(write, broke)
