"""How much may be in flight on one link.

A window, not a rate: a window finds the rate by itself. Two chunks keep a link busy, because one
is under way while the answer to the other travels; a chunk is what the link carries in
`chunk_time_s`, within bounds. The window grows where the round trip or a late poll would leave the
link idle. What is in flight cannot be called back, so the window is also how long an abort takes.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """Bounds of one link. `initial_chunk_bytes` serves until a rate is known.

    `chunk_time_s` suits paths on which nothing waits for a single page; a path that answers
    decode steps wants 0.002. `max_descriptors` leaves aux writes, which are not paced, room below
    the engine's 1,000.
    """

    chunk_time_s: float = 0.01
    min_chunk_bytes: int = 64 * KIB
    max_chunk_bytes: int = 1 * MIB
    initial_chunk_bytes: int = 256 * KIB
    max_window_bytes: int = 16 * MIB
    max_descriptors: int = 800
    min_poll_s: float = 0.0002
    max_poll_s: float = 0.002

    def __post_init__(self) -> None:
        if not self.chunk_time_s > 0:
            raise ValueError("pacing.chunk_time_s must be positive")
        if not 0 < self.min_chunk_bytes <= self.initial_chunk_bytes <= self.max_chunk_bytes:
            raise ValueError("pacing: chunk bounds must be positive and hold the initial chunk")
        if self.max_window_bytes < 2 * self.max_chunk_bytes:
            raise ValueError("pacing: the largest window must hold two of the largest chunks")
        if not 0 < self.min_poll_s <= self.max_poll_s:
            raise ValueError("pacing: poll bounds must be positive and in order")
        if self.max_descriptors < 8:
            raise ValueError("pacing.max_descriptors must be at least 8")


class Pacer:
    """Fed with launches and settlements; `at` in seconds, never falling."""

    # A rate is believed after this much delivered data and busy time; rises are believed faster
    # than falls, because a link that idles for want of data looks slow.
    SAMPLE_BUSY_S = 0.005
    RISE = 0.5
    FALL = 0.1
    # A wide window makes a queue of its own, and the queue looks like a longer round trip. So the
    # round trip is measured with the narrowest window, over some writes, and again now and then.
    TRIP_MEMORY_S = 10.0
    TRIP_SAMPLES = 4
    # While the window limits the rate, rate x trip is the window itself; the factor makes it grow.
    GROWTH = 2.0
    GAP_DECAY = 0.99  # per poll

    def __init__(self, pacing: Pacing | None = None) -> None:
        self.pacing = Pacing() if pacing is None else pacing
        self.in_flight_bytes = 0
        self.in_flight_descriptors = 0
        self.rate_bytes_per_s: float | None = None
        self.round_trip_s: float | None = None
        self._probe_from: float | None = None  # None: not measuring the round trip
        self._probe_trips: list[float] = []
        self._probed_at: float | None = None
        self._poll_gap_s = 0.0
        self._polled_at: float | None = None
        self._busy_since: float | None = None
        self._sample_bytes = 0
        self._sample_busy_s = 0.0

    @property
    def chunk_bytes(self) -> int:
        """Size of the next write."""
        rate = self.rate_bytes_per_s
        if rate is None:
            return self.pacing.initial_chunk_bytes
        chunk = int(rate * self.pacing.chunk_time_s)
        return min(max(chunk, self.pacing.min_chunk_bytes), self.pacing.max_chunk_bytes)

    @property
    def window_bytes(self) -> int:
        """Most bytes in flight."""
        chunk = self.chunk_bytes
        if self._probe_from is not None:
            return 2 * chunk
        rate, trip = self.rate_bytes_per_s or 0.0, self.round_trip_s or 0.0
        fill = max(self.GROWTH * rate * trip, chunk + rate * self._poll_gap_s)
        return min(max(2 * chunk, int(fill)), self.pacing.max_window_bytes)

    @property
    def poll_interval_s(self) -> float:
        """Half of a chunk's time on the link, within bounds."""
        rate = self.rate_bytes_per_s
        if not rate:
            return 2 * self.pacing.min_poll_s
        half = self.chunk_bytes / rate / 2
        return min(max(half, self.pacing.min_poll_s), self.pacing.max_poll_s)

    def allowance(self) -> tuple[int, int]:
        """(bytes, descriptors) the next write may have; (0, 0) means wait."""
        chunk = self.chunk_bytes
        descriptors = self.pacing.max_descriptors - self.in_flight_descriptors
        if self.in_flight_descriptors == 0:
            return chunk, descriptors
        # What is left would cut runs into crumbs: wait for half a chunk, an eighth of the limit.
        room = self.window_bytes - self.in_flight_bytes
        if room < chunk // 2 or descriptors < self.pacing.max_descriptors // 8:
            return 0, 0
        return min(chunk, room), descriptors

    def launched(self, at: float, *, nbytes: int, descriptors: int) -> None:
        """A write of at least one descriptor is running."""
        if self.in_flight_descriptors == 0:
            self._busy_since = at
            self._polled_at = at
        self.in_flight_bytes += nbytes
        self.in_flight_descriptors += descriptors

    def settled(
        self, at: float, *, nbytes: int, descriptors: int, latency_s: float, ok: bool
    ) -> None:
        """A write is over, `latency_s` after its launch. A failed one teaches nothing."""
        self.in_flight_bytes -= nbytes
        self.in_flight_descriptors -= descriptors
        if self._busy_since is not None:
            self._sample_busy_s += max(0.0, at - self._busy_since)
        self._busy_since = at if self.in_flight_descriptors else None
        if not ok:
            return
        self._sample_bytes += nbytes
        if self._sample_bytes >= self.chunk_bytes and self._sample_busy_s >= self.SAMPLE_BUSY_S:
            self._learn_rate(self._sample_bytes / self._sample_busy_s)
            self._sample_bytes, self._sample_busy_s = 0, 0.0
        self._learn_trip(at, latency_s)

    def polled(self, at: float) -> None:
        """Results were looked for now. Remembers for a while how late that can be."""
        if self._polled_at is not None and self.in_flight_descriptors:
            gap = max(0.0, at - self._polled_at)
            self._poll_gap_s = max(gap, self._poll_gap_s * self.GAP_DECAY)
        self._polled_at = at

    def check(self) -> None:
        """Assert what must hold between any two calls."""
        assert self.in_flight_bytes >= 0
        assert self.in_flight_descriptors >= 0
        assert self.in_flight_descriptors or self.in_flight_bytes == 0
        assert 2 * self.pacing.min_chunk_bytes <= self.window_bytes

    def _learn_rate(self, rate: float) -> None:
        if self.rate_bytes_per_s is None:
            self.rate_bytes_per_s = rate
            return
        weight = self.RISE if rate > self.rate_bytes_per_s else self.FALL
        self.rate_bytes_per_s += weight * (rate - self.rate_bytes_per_s)

    def _learn_trip(self, at: float, latency_s: float) -> None:
        if self.rate_bytes_per_s is None:
            return
        if self._probe_from is None:
            if self._probed_at is None or at - self._probed_at >= self.TRIP_MEMORY_S:
                self._probe_from, self._probe_trips = at, []
            return
        if at - latency_s < self._probe_from:
            return  # launched into the wide window
        self._probe_trips.append(latency_s)
        if len(self._probe_trips) >= self.TRIP_SAMPLES:
            self.round_trip_s = min(self._probe_trips)
            self._probe_from, self._probed_at = None, at
