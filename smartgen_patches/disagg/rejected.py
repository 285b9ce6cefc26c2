"""Rooms that prefill must fail as soon as their request shows up.

A peer's refusal can arrive before the client's request has reached this scheduler, so it is kept
until the sender asks, for a bounded time.
"""

import threading
import time

KEEP_S = 600.0


class RejectedRooms:
    """Thread-safe map of room to reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[int, tuple[float, str]] = {}

    def add(self, room: int, reason: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._reasons[room] = (now, reason)
            for old in [r for r, (at, _) in self._reasons.items() if now - at > KEEP_S]:
                del self._reasons[old]

    def take(self, room: int) -> str | None:
        """The reason, once."""
        if not self._reasons:
            return None
        with self._lock:
            found = self._reasons.pop(room, None)
        return None if found is None else found[1]
