"""One request's receiver on the decode server."""

import time
from dataclasses import asdict
from enum import Enum
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVReceiver
from smartgen import wire
from smartgen.core import RequestKey

from smartgen_patches.digest import kv_digest


class SmartGenKVReceiver(MooncakeKVReceiver):
    """Holds a request back until its peer is known to fit and every page has landed.

    Everything here runs on the scheduler thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arrived = time.monotonic()
        self._side = self.kv_mgr.decode_side

    def _register_kv_args(self) -> bool:
        # A registration carries our Hello; the answer is awaited from now on.
        for endpoint in self._endpoints():
            self._side.peers.expect(endpoint)
        return bool(super()._register_kv_args())

    def _poll(self) -> KVPoll:
        if self.conclude_state is not None:
            return self.conclude_state
        status = self.kv_mgr.check_status(self.bootstrap_room)
        if self.init_time is None:
            # No page is offered yet. Whether the peer is known is read before what it says: a
            # Hello in between then only costs one more look.
            known = self._peers_known()
            refusal = self._side.refusal(self.bootstrap_addr, self._endpoints())
            if refusal is not None:
                return self._refuse(refusal)
            if status == KVPoll.WaitingForInput and not known:
                return KVPoll.Bootstrapping
        if status == KVPoll.Success and not self._landed():
            return self._poll_landing()
        return super()._poll()

    def take_report(self, req: Any, req_to_token: Any) -> dict[str, Any]:
        """What `meta_info["smartgen"]` says about this transfer; plain JSON values.

        Called before the request's first decode step.
        """
        closed = self._side.close(self.bootstrap_room)
        report: dict[str, Any] = {"mode": "full"}
        if closed is not None:
            values = {k: v.value if isinstance(v, Enum) else v for k, v in asdict(closed).items()}
            report = {k: v for k, v in values.items() if v is not None}
        if self.kv_mgr.settings.debug:
            report["kv_digest"] = kv_digest(
                self.kv_mgr.kv_args, req_to_token, req.kv.req_pool_idx, len(req.origin_input_ids)
            )
        return report

    def clear(self) -> None:
        self._side.close(self.bootstrap_room)
        super().clear()

    def _endpoints(self) -> list[str]:
        infos = getattr(self, "bootstrap_infos", None) or []
        return [f"{info['rank_ip']}:{info['rank_port']}" for info in infos]

    def _peers_known(self) -> bool:
        return all(self._side.peers.known(endpoint) for endpoint in self._endpoints())

    def _landed(self) -> bool:
        """Success was reported; are all pages accounted for as well?"""
        key = self._side.key_of(self.bootstrap_room)
        if key is None:
            return True
        self._side.agent.succeeded(key)
        return bool(self._side.agent.ready(key))

    def _poll_landing(self) -> KVPoll:
        key = self._side.key_of(self.bootstrap_room)
        failure = None if key is None else self._side.agent.failure(key)
        if failure is None:
            return KVPoll.Transferring
        self.ensure_abort_notified()
        return self._fail(str(failure))

    def _refuse(self, reason: str) -> KVPoll:
        """Fail this request typed, here and on the prefill server, before any page is offered."""
        note = wire.pack([wire.Close.of(RequestKey(self.bootstrap_room, 0), reason)])
        for info, endpoint in zip(self.bootstrap_infos or [], self._endpoints(), strict=True):
            # Only a peer that answered our Hello understands the note; any other would end its
            # receiving thread over it.
            if self._side.peers.known(endpoint):
                self.kv_mgr.tell((info["rank_ip"], int(info["rank_port"])), note)
                # SGLang's own notice carries no reason and may overtake ours.
                self.abort_notified = True
        self.ensure_abort_notified()
        return self._fail(reason)

    def _fail(self, reason: str) -> KVPoll:
        self.kv_mgr.record_failure(self.bootstrap_room, reason)
        self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)
        self.conclude_state = KVPoll.Failed
        return KVPoll.Failed
