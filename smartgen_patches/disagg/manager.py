"""The KV manager: SGLang's Mooncake manager, with our part of each role beside it.

Methods here only route: SGLang's scheduler thread calls the senders and receivers, SGLang's
control thread shows each message to one of the two taps first (an exception there would end that
thread and with it the server). What is done stands in `prefill_side.py` and `decode_side.py`.
"""

import logging
import threading
from typing import Any

import zmq
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.utils.network import NetworkAddress
from smartgen import wire
from smartgen.metrics import catalog

from smartgen_patches.args import settings_of
from smartgen_patches.disagg.decode_side import DecodeSide
from smartgen_patches.disagg.identity import geometry_of, identity_of
from smartgen_patches.disagg.prefill_side import PrefillSide
from smartgen_patches.disagg.route import fetch_prefill_info
from smartgen_patches.idle import Bell
from smartgen_patches.telemetry import metrics_sink

logger = logging.getLogger(__name__)


class SmartGenKVManager(MooncakeKVManager):
    """One per server rank. `prefill_side` or `decode_side` is set, by the server's role."""

    # Failures name their cause on the decode server as well; a stock peer reads this frame too.
    kv_status_msg_carries_reason = True
    prefill_side: PrefillSide
    decode_side: DecodeSide

    def __init__(
        self,
        args: Any,
        disaggregation_mode: DisaggregationMode,
        server_args: Any,
        is_mla_backend: bool | None = False,
    ) -> None:
        settings = settings_of(server_args)
        assert settings is not None, "constructed for a server without the smartgen backend"
        self.settings = settings
        self.sink = metrics_sink()
        self.bell = Bell()
        # super() starts the control thread; a message that comes before we are ready waits.
        self._constructed = threading.Event()
        super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
        self.geometry = geometry_of(args)
        self.identity = identity_of(args, server_args, settings.mode)
        if disaggregation_mode == DisaggregationMode.PREFILL:
            self.prefill_side = PrefillSide(self)
        else:
            self.decode_side = DecodeSide(self)
        self._constructed.set()

    # ---- prefill

    def add_transfer_request(
        self,
        bootstrap_room: int,
        kv_indices: Any,
        index_slice: slice,
        is_last_chunk: bool,
        **more: Any,
    ) -> None:
        """A chunk is computed and its pages are final. Scheduler thread."""
        side = self.prefill_side
        if not side.commit(
            bootstrap_room, kv_indices, index_slice, is_last_chunk, more.get("aux_index")
        ):
            super().add_transfer_request(
                bootstrap_room, kv_indices, index_slice, is_last_chunk, **more
            )

    def _handle_abort_notification(self, msg: list[bytes]) -> bool:
        """Tap on every message to a prefill rank; True means that it was ours."""
        self._constructed.wait()
        return self._tapped(self.prefill_side.on_message, msg) or bool(
            super()._handle_abort_notification(msg)
        )

    def _handle_deferred_abort_notification(self, notification: Any, room_active: bool) -> None:
        self.prefill_side.abort_room(notification.room)
        super()._handle_deferred_abort_notification(notification, room_active)

    # ---- decode

    def build_receiver_registration_message(self) -> list[bytes]:
        hello = wire.encode(wire.Hello.of(self.identity))
        return [*super().build_receiver_registration_message(), hello]

    def build_receiver_metadata_message(
        self, *, bootstrap_room: int, kv_indices: Any, is_dummy: bool, **more: Any
    ) -> list[bytes]:
        message: list[bytes] = super().build_receiver_metadata_message(
            bootstrap_room=bootstrap_room, kv_indices=kv_indices, is_dummy=is_dummy, **more
        )
        if not is_dummy:
            message.append(wire.encode(self.decode_side.open(bootstrap_room, len(kv_indices))))
        return message

    def handle_chunk_ready(self, msg: list[bytes]) -> bool:
        """Tap on every message to a decode rank; True means that it was ours."""
        self._constructed.wait()
        return self._tapped(self.decode_side.on_message, msg) or bool(
            super().handle_chunk_ready(msg)
        )

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """SGLang raises into the scheduler's loop when page size or dtype differ, which ends it.

        Here the peer is taken all the same, so that only its requests fail and both sides say why.
        """
        if bootstrap_addr in self.prefill_info_table:
            return True
        try:
            found = bool(super().try_ensure_parallel_info(bootstrap_addr))
            if found:
                # Asked anew: another server than the one that did not fit may answer there now.
                self.decode_side.fit(bootstrap_addr)
            return found
        except RuntimeError as error:
            info = fetch_prefill_info(bootstrap_addr)
            if info is None:
                return False
            self.decode_side.unfit(bootstrap_addr, str(error))
            self._resolve_rank_mapping(info)
            self.prefill_info_table[bootstrap_addr] = info
            return True

    # ---- both

    def update_status(self, bootstrap_room: int, status: Any) -> None:
        """Any thread. The scheduler may be asleep, waiting for just this."""
        super().update_status(bootstrap_room, status)
        self.bell.ring()

    def send_frames(self, endpoint: tuple[str, int], frames: list[bytes]) -> None:
        """One of our messages to a peer's control socket, in order with SGLang's own.

        Never waits. Raises zmq.ZMQError when the peer's queue is full or the peer is gone.
        """
        address = NetworkAddress(*endpoint)
        name = address.to_tcp()
        socket = self._connect(name, is_ipv6=address.is_ipv6)
        with self._socket_send_locks[name]:
            socket.send_multipart(frames, flags=zmq.NOBLOCK)

    def tell(self, endpoint: tuple[str, int], frames: list[bytes]) -> None:
        """`send_frames` where a lost message ends in a time-out anyway: failing is only logged."""
        try:
            self.send_frames(endpoint, frames)
        except zmq.ZMQError as error:
            logger.warning("smartgen: a message to %s:%d was not sent: %s", *endpoint, error)

    def _tapped(self, take: Any, msg: list[bytes]) -> bool:
        try:
            taken = bool(take(msg))
            if taken:
                self.bell.ring()
            return taken
        except Exception:
            logger.exception(
                "smartgen: a control message of %d frames was not understood", len(msg)
            )
            self.sink.count(catalog.MALFORMED)
            return True
