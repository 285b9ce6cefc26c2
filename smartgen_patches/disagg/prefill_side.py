"""What a prefill server adds to SGLang's manager: layer-wise transfers and peer checks.

The scheduler thread opens, commits and aborts; SGLang's control thread brings messages; the
agent's thread calls back (`PrefillCallbacks`) when a transfer is over.
"""

import atexit
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sglang.srt.disaggregation.base.conn import KVPoll
from smartgen import ops, wire
from smartgen.core import Destination, Mode, RequestKey
from smartgen.metrics import catalog
from smartgen.runtime import (
    BLOCK_TOKENS,
    SELECTOR,
    Failure,
    PrefillAgent,
    PromptStatistics,
    StatisticsSpec,
)
from smartgen.select import selector
from smartgen.transfer import TransferReport
from smartgen.transport import MooncakeTransport

from smartgen_patches.disagg.peers import DecodePeers, hello_frames
from smartgen_patches.disagg.rejected import RejectedRooms
from smartgen_patches.disagg.request_mode import CONFIGURED
from smartgen_patches.transport import chosen_protocol

logger = logging.getLogger(__name__)

# Index of the last frame of SGLang's own registration and metadata messages; ours ride behind.
_LAST_REGISTRATION_FRAME = 19
_LAST_METADATA_FRAME = 9
_OFFER_KEPT_S = 600.0


class _Offer(NamedTuple):
    """Decode's pages for a room wait for the request to start here, since `at`."""

    key: RequestKey
    at: float


@dataclass
class _Room:
    """A layer-wise transfer of one room. `report` is set when it was delivered."""

    key: RequestKey
    endpoint: tuple[str, int]
    report: TransferReport | None = None


class PrefillSide:
    """`manager` is the SmartGenKVManager of a prefill rank."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._peers = DecodePeers(manager.identity)
        self._rejected = RejectedRooms()
        self._lock = threading.Lock()
        self._offers: dict[int, _Offer] = {}
        self._rooms: dict[int, _Room] = {}
        self._src_entries = tuple(int(ptr) for ptr in manager.kv_args.kv_data_ptrs)
        self._statistics: StatisticsSpec | None = None
        self.agent = self._start_agent()

    def _start_agent(self) -> PrefillAgent:
        manager = self._manager
        transport = MooncakeTransport(host=manager.local_ip, protocol=chosen_protocol())
        for addr, nbytes in manager._registerable_regions():
            transport.register(addr, nbytes)
        agent = PrefillAgent(
            transport=transport,
            control=_Control(manager),
            geometry=manager.geometry,
            callbacks=self,
            sink=manager.sink,
            write_deadline_s=manager.settings.write_deadline_s,
            debug=manager.settings.debug,
        )
        agent.start()
        # SGLang tells a KV manager nothing when its server stops. What is still open then fails with
        # that reason, and no thread is inside the engine when the interpreter ends.
        atexit.register(agent.stop)
        return agent

    def prepare_statistics(self) -> None:
        """Called once, before the first request, where they are switched on. Raises SelectError."""
        page_size = int(self._manager.kv_args.page_size)
        self._statistics = StatisticsSpec(
            layers=self._manager.geometry.layers,
            page_size=page_size,
            block_size=max(1, BLOCK_TOKENS // page_size) * page_size,
            selector=selector(SELECTOR),
            ops=ops.backend(),
        )

    # ---- scheduler thread

    def statistics_of(self, tokens: int) -> PromptStatistics | None:
        """What gathers the statistics of a prompt; None where they are switched off."""
        return None if self._statistics is None else PromptStatistics(self._statistics, tokens)

    def open(self, room: int, total_pages: int, why_full: str | None) -> RequestKey | None:
        """Start a layer-wise transfer of a bootstrapped room; None means SGLang's own way.

        `why_full`: the reason why it is to go SGLang's way in any case.
        """
        with self._lock:
            offer = self._offers.get(room)
        infos = self._destinations(room)
        if offer is None or not infos:
            return None
        key = offer.key
        reason = why_full or self._reason_for_full(infos, total_pages)
        if reason is not None:
            self.withdraw(room)
            self._fall_back(key, reason, infos)
            return None
        info = infos[0]
        endpoint = (info.endpoint, info.dst_port)
        destination = Destination(
            session=info.mooncake_session_id,
            endpoint=endpoint,
            entries=tuple(self._registered(info).dst_kv_ptrs),
            pages=np.asarray(info.dst_kv_indices[:total_pages], dtype=np.int32),
        )
        # Under the lock that `abort_room` takes: an abort comes either before, and takes the offer
        # away, or after, and its post to the agent follows this one. In between, the agent would
        # open a request whose pages decode was already told to be free.
        with self._lock:
            if self._offers.pop(room, None) != offer:
                return None
            self._rooms[room] = _Room(key, endpoint)
            # Not zero until `drained`: at zero SGLang tells an aborting decode server that nobody
            # writes into its pages any more.
            self._manager._staging_outstanding[room] = 1
            self.agent.open(key, destination, self._src_entries)
        return key

    def commit(
        self, room: int, kv_indices: Any, index_slice: slice, last: bool, aux_index: int | None
    ) -> bool:
        """A chunk's pages are final. False: not a layer-wise room."""
        with self._lock:
            found = self._rooms.get(room)
        if found is None:
            return False
        if self._manager.request_status.get(room, KVPoll.Failed) == KVPoll.Failed:
            return True
        pages = np.array(kv_indices, dtype=np.int32)
        self.agent.chunk_committed(found.key, index_slice.start, pages, last)
        if last:
            self.agent.aux_ready(found.key, self._aux_writes(room, aux_index))
        return True

    def abort_room(self, room: int) -> None:
        """Either server gave the room up; answered by `drained`."""
        self.withdraw(room)
        with self._lock:
            found = self._rooms.get(room)
        if found is not None:
            self.agent.abort(found.key, "given up by one of the servers")

    def withdraw(self, room: int) -> None:
        """Decode's offer of pages for this room stands no longer."""
        with self._lock:
            self._offers.pop(room, None)

    def rejection(self, room: int) -> str | None:
        """Why this room must fail although nothing was sent yet; said once."""
        return self._rejected.take(room)

    def open_count(self) -> int:
        """Layer-wise transfers that are not over."""
        with self._lock:
            return len(self._rooms)

    def finish(self, key: RequestKey) -> TransferReport | None:
        """SGLang is done with this transfer: its report if it was delivered, else it is aborted."""
        with self._lock:
            found = self._rooms.get(key.room)
            if found is None or found.key != key:
                return None
            if found.report is not None:
                del self._rooms[key.room]
                return found.report
        self.agent.abort(key, "given up by the prefill server")
        return None

    def _destinations(self, room: int) -> list[Any]:
        infos = self._manager.transfer_infos.get(room, {})
        return [info for info in infos.values() if not info.is_dummy]

    def _registered(self, info: Any) -> Any:
        return self._manager.decode_kv_args_table[info.mooncake_session_id]

    def _reason_for_full(self, infos: list[Any], total_pages: int) -> str | None:
        if len(infos) != 1:
            return "several_destinations"
        if len(infos[0].dst_kv_indices) < total_pages:
            return "fewer_destination_pages"
        return "decode_prefix" if infos[0].decode_prefix_len else None

    def _fall_back(self, key: RequestKey, reason: str, infos: list[Any]) -> None:
        if reason == CONFIGURED:
            return
        self._manager.sink.count(catalog.FALLBACKS, reason=reason)
        if self._manager.settings.mode is Mode.FULL:
            return  # decode expects nothing else
        for info in infos:
            note = wire.pack([wire.Fallback.of(key, reason)])
            self._manager.tell((info.endpoint, info.dst_port), note)

    def _aux_writes(self, room: int, aux_index: int | None) -> tuple[tuple[int, int, int], ...]:
        """(source, destination, bytes) of the request's row in every metadata buffer."""
        assert aux_index is not None, "the last chunk comes with its metadata row"
        info = self._destinations(room)[0]
        kv_args = self._manager.kv_args
        pairs = zip(
            kv_args.aux_data_ptrs,
            self._registered(info).dst_aux_ptrs,
            kv_args.aux_item_lens,
            strict=False,
        )
        return tuple(
            (src + size * aux_index, dst + size * info.dst_aux_index, size)
            for src, dst, size in pairs
        )

    # ---- SGLang's control thread

    def on_message(self, msg: list[bytes]) -> bool:
        """True when the message is ours alone; SGLang's own messages are only looked at."""
        if wire.is_ours(msg):
            for message in wire.unpack(msg):
                if isinstance(message, wire.Close):
                    logger.error(
                        "smartgen: decode refuses room %d: %s", message.room, message.reason
                    )
                    self._rejected.add(message.room, message.reason)
            return True
        if msg[0] == b"None":
            self._on_registration(msg)
            return False
        if msg[0].isdigit() and len(msg) > _LAST_METADATA_FRAME:
            return self._on_metadata(msg)
        return False

    def _on_registration(self, msg: list[bytes]) -> None:
        endpoint = (msg[1].decode("ascii"), int(msg[2]))
        hello = wire.find(msg, wire.Hello, after=_LAST_REGISTRATION_FRAME)
        identity = hello.identity if isinstance(hello, wire.Hello) else None
        refusal = self._peers.registered(msg[3].decode("ascii"), endpoint, identity)
        if refusal is not None:
            logger.error("smartgen: %s", refusal)
            self._manager.sink.count(catalog.MISMATCHED)
        if identity is not None:
            own = f"{self._manager.local_ip}:{self._manager.rank_port}"
            self._manager.tell(endpoint, hello_frames(own, self._manager.identity))

    def _on_metadata(self, msg: list[bytes]) -> bool:
        room = int(msg[0])
        refusal = self._peers.refusal(msg[3].decode("ascii"))
        if refusal is not None:
            self._rejected.add(room, refusal)
            self._manager.send_kv_status_message(
                targets=[(msg[1].decode("ascii"), int(msg[2]))],
                bootstrap_room=room,
                status=KVPoll.Failed,
                failure_reason=refusal,
            )
            return True
        note = wire.find(msg, wire.Open, after=_LAST_METADATA_FRAME)
        if isinstance(note, wire.Open):
            now = time.monotonic()
            with self._lock:
                self._offers[room] = _Offer(note.key, now)
                # Of requests that never came, or had ended before their metadata did.
                for old in [r for r, o in self._offers.items() if now - o.at > _OFFER_KEPT_S]:
                    del self._offers[old]
        return False

    # ---- agent thread: PrefillCallbacks

    def delivered(self, key: RequestKey, report: TransferReport) -> None:
        """Everything is in place and decode was told; now SGLang's own success may follow."""
        with self._lock:
            found = self._rooms.get(key.room)
            if found is None or found.key != key:
                return
            found.report = report
        # Cleared first: SGLang holds a success back while something is outstanding.
        self._manager._staging_outstanding.pop(key.room, None)
        self._manager.conclude_transfer(
            bootstrap_room=key.room, status=KVPoll.Success, targets=[found.endpoint]
        )

    def failed(self, key: RequestKey, failure: Failure) -> None:
        with self._lock:
            found = self._rooms.get(key.room)
        if found is not None and found.key == key:
            self._manager.conclude_failure(
                bootstrap_room=key.room, failure_reason=str(failure), targets=[found.endpoint]
            )

    def drained(self, key: RequestKey) -> None:
        """Nothing of this request is in flight: decode may free its pages."""
        with self._lock:
            found = self._rooms.get(key.room)
            if found is not None and found.key != key:
                return  # the room is a newer transfer's, which has its own count
            if found is not None and found.report is None:
                del self._rooms[key.room]
        self._manager._staging_outstanding.pop(key.room, None)
        self._manager._maybe_ack_drained_abort(key.room)


class _Control:
    """ControlSender over the manager's sockets."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def send(self, endpoint: tuple[str, int], frames: list[bytes]) -> None:
        self._manager.send_frames(endpoint, frames)
