"""What a decode server adds to SGLang's manager: peer checks and the tables of arriving requests."""

import itertools
import logging
import threading
from typing import Any

from smartgen import wire
from smartgen.core import RequestKey
from smartgen.metrics import catalog
from smartgen.runtime import DecodeAgent

from smartgen_patches.disagg.peers import HELLO_TAG, PrefillPeers

logger = logging.getLogger(__name__)


class DecodeSide:
    """`manager` is the SmartGenKVManager of a decode rank."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        # Never repeats, so a late note of an earlier attempt at a room means nobody.
        self._epochs = itertools.count(1)
        self._keys: dict[int, RequestKey] = {}
        self._unfit: dict[str, str] = {}
        self.peers = PrefillPeers(manager.identity)
        self.agent = DecodeAgent(
            layers=manager.geometry.layers, sink=manager.sink, debug=manager.settings.debug
        )

    # ---- scheduler thread

    def open(self, room: int, total_pages: int) -> wire.Open:
        """Pages are allocated for this room; the note that tells prefill so."""
        key = RequestKey(room, next(self._epochs))
        with self._lock:
            replaced = self._keys.get(room)
            self._keys[room] = key
        if replaced is not None:
            self.agent.close(replaced)
        self.agent.open(key, total_pages=total_pages, mode=self._manager.settings.mode)
        return wire.Open.of(key, self._manager.settings.mode, total_pages)

    def open_count(self) -> int:
        """Rooms whose pages are offered and whose request has not started."""
        with self._lock:
            return len(self._keys)

    def key_of(self, room: int) -> RequestKey | None:
        with self._lock:
            return self._keys.get(room)

    def close(self, room: int) -> Any | None:
        """Forget the room; its last ReceiverReport, None if it was never opened."""
        with self._lock:
            key = self._keys.pop(room, None)
        return None if key is None else self.agent.close(key)

    def unfit(self, bootstrap_addr: str, reason: str) -> None:
        """SGLang itself found that this prefill server does not fit."""
        logger.error("smartgen: prefill %s does not fit: %s", bootstrap_addr, reason)
        self._unfit[bootstrap_addr] = reason

    def fit(self, bootstrap_addr: str) -> None:
        """SGLang itself found nothing wrong with it."""
        self._unfit.pop(bootstrap_addr, None)

    def refusal(self, bootstrap_addr: str, endpoints: list[str]) -> str | None:
        """Why no request may use this prefill server; None while all is well or not yet known."""
        for endpoint in endpoints:
            refusal = self.peers.refusal(endpoint)
            if refusal is not None:
                return refusal
        if all(self.peers.known(endpoint) for endpoint in endpoints):
            return self._unfit.get(bootstrap_addr)
        return None

    # ---- SGLang's control thread

    def on_message(self, msg: list[bytes]) -> bool:
        """True when the message is ours."""
        if msg[0] == HELLO_TAG:
            self._on_hello(msg)
            return True
        return self.agent.on_message(msg)

    def _on_hello(self, msg: list[bytes]) -> None:
        endpoint = msg[1].decode("ascii")
        try:
            hello = wire.find(msg, wire.Hello, after=1)
        except wire.WireError as error:
            self.peers.unreadable(endpoint, str(error))
            return
        if not isinstance(hello, wire.Hello):
            self.peers.unreadable(endpoint, "there is no hello in it")
            return
        self.peers.heard(endpoint, hello.identity)
        refusal = self.peers.refusal(endpoint)
        if refusal is not None:
            logger.error("smartgen: %s", refusal)
            self._manager.sink.count(catalog.MISMATCHED)
