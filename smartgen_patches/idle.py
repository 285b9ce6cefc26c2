"""Waiting costs nothing: a scheduler that only waits for transfers sleeps until something happens.

SGLang sleeps when it is fully idle (`--sleep-on-idle`) but spins while a request is being
bootstrapped or transferred. Its sleeper already polls the tokenizer's sockets; here it is used for
that time as well, together with a wake-up that our KV manager rings when a status changes.
"""

import os
import select
from typing import Any

# A stock KV manager rings no bell, so its status is looked at this often.
POLL_MS = 2
# With a bell every change wakes at once; this bounds the wait for what has no bell, such as
# SGLang's own timeouts. Each look is a turn of the scheduler's loop, and those add up: what a pair
# costs while it waits is measured by benchmark/idle_cpu.py.
RUNG_POLL_MS = 10


class Bell:
    """Wakes the scheduler's poll from any thread. Ringing twice is ringing once."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """Forget what was rung; the caller looks at everything next."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return


def kv_manager_of(scheduler: Any) -> Any | None:
    """The KV manager of a prefill or decode scheduler; None on an aggregated server."""
    for queue in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        found = getattr(scheduler, queue, None)
        if found is not None:
            return found.kv_manager
    return None


def listen_for_bell(scheduler: Any) -> None:
    """Let the scheduler's sleeper hear its KV manager's bell."""
    poller = getattr(scheduler.idle_sleeper, "poller", None)
    bell = getattr(kv_manager_of(scheduler), "bell", None)
    if poller is not None and bell is not None:
        poller.register(bell.fd, select.POLLIN)  # the same number as ZeroMQ's
        scheduler._smartgen_bell = bell


def after_on_idle(result: None, scheduler: Any) -> None:
    """Hook on Scheduler.on_idle, which runs once per loop without a batch."""
    poller = getattr(scheduler.idle_sleeper, "poller", None)
    if poller is None:
        return
    bell: Bell | None = getattr(scheduler, "_smartgen_bell", None)
    if not scheduler.is_fully_idle():
        poller.poll(POLL_MS if bell is None else RUNG_POLL_MS)
    if bell is not None:
        bell.silence()
