"""Who the other servers are: the Hello exchange, kept apart from any one request.

Decode's Hello rides behind its registration message, where a stock prefill ignores it; prefill
answers with its own. So both sides learn the other's identity before the first request's pages
are allocated, and a peer that never answers is not SmartGen.
"""

import threading
import time
from dataclasses import dataclass

from smartgen.core import Identity
from smartgen.wire import Hello, encode

HELLO_TAG = b"SMARTGEN_HELLO"
HELLO_WAIT_S = 3.0


def hello_frames(endpoint: str, identity: Identity) -> list[bytes]:
    """Prefill's answer: who answers (its rank's endpoint) and what it is."""
    return [HELLO_TAG, endpoint.encode("ascii"), encode(Hello.of(identity))]


@dataclass
class _Peer:
    expected_at: float
    identity: Identity | None = None
    unreadable: str | None = None


class PrefillPeers:
    """Decode's view of prefill ranks, by control endpoint "ip:port". Thread-safe."""

    def __init__(self, own: Identity) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}

    def expect(self, endpoint: str) -> None:
        """A Hello is on its way to this endpoint; what was known about it is void."""
        with self._lock:
            self._peers[endpoint] = _Peer(expected_at=time.monotonic())

    def heard(self, endpoint: str, identity: Identity) -> None:
        with self._lock:
            self._peers.setdefault(endpoint, _Peer(time.monotonic())).identity = identity

    def unreadable(self, endpoint: str, reason: str) -> None:
        with self._lock:
            self._peers.setdefault(endpoint, _Peer(time.monotonic())).unreadable = reason

    def known(self, endpoint: str) -> bool:
        """Has it answered (so that it understands our messages)?"""
        with self._lock:
            peer = self._peers.get(endpoint)
            return peer is not None and peer.identity is not None

    def refusal(self, endpoint: str) -> str | None:
        """Why requests must not use this peer, as one sentence; None while all is well or open."""
        with self._lock:
            peer = self._peers.get(endpoint)
        if peer is None:
            return None
        if peer.unreadable is not None:
            return f"decode cannot read the hello of prefill {endpoint}: {peer.unreadable}"
        if peer.identity is not None:
            mismatch = self._own.mismatch(peer.identity)
            return None if mismatch is None else f"prefill {endpoint} does not fit: {mismatch}"
        if time.monotonic() - peer.expected_at < HELLO_WAIT_S:
            return None
        return (
            f"this decode server runs --disaggregation-transfer-backend smartgen but prefill "
            f"{endpoint} gave no smartgen answer within {HELLO_WAIT_S:.0f} s (a stock mooncake "
            "server, or stopped); start both servers with the same backend"
        )


class DecodePeers:
    """Prefill's view of decode ranks, by Mooncake session. Thread-safe."""

    def __init__(self, own: Identity) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._refusals: dict[str, str | None] = {}

    def registered(
        self, session: str, endpoint: tuple[str, int], identity: Identity | None
    ) -> str | None:
        """A decode rank registered, with or without a Hello. The refusal, None if it fits."""
        name = f"{endpoint[0]}:{endpoint[1]}"
        if identity is None:
            refusal: str | None = (
                f"this prefill server runs --disaggregation-transfer-backend smartgen but decode "
                f"{name} runs stock mooncake; start both servers with the same backend"
            )
        else:
            mismatch = self._own.mismatch(identity)
            refusal = None if mismatch is None else f"decode {name} does not fit: {mismatch}"
        with self._lock:
            self._refusals[session] = refusal
        return refusal

    def refusal(self, session: str) -> str | None:
        with self._lock:
            return self._refusals.get(session, "decode sent metadata before it registered")
