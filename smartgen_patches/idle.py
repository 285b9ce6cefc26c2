"""Waiting costs nothing: a scheduler that only waits for transfers sleeps between looks.

SGLang sleeps when it is fully idle (`--sleep-on-idle`) but spins while a request is being
bootstrapped or transferred.
"""

from typing import Any

# A message from the tokenizer wakes the scheduler at once; a transfer's end within this time.
POLL_MS = 2


def after_on_idle(result: None, scheduler: Any) -> None:
    """Hook on Scheduler.on_idle, which runs once per loop without a batch."""
    sleeper = scheduler.idle_sleeper
    if sleeper is not None and hasattr(sleeper, "poller") and not scheduler.is_fully_idle():
        sleeper.poller.poll(POLL_MS)
