"""One request's sender on the prefill server."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferMetric
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender
from smartgen.core import RequestKey
from smartgen.metrics import catalog
from smartgen.runtime import PromptStatistics
from smartgen.transfer import TransferReport

from smartgen_patches.digest import kv_digest
from smartgen_patches.disagg.request_mode import requested_statistics, why_full
from smartgen_patches.response import attach_report, statistics_values, transfer_values
from smartgen_patches.telemetry import FULL_PATH


class SmartGenKVSender(MooncakeKVSender):
    """Layer-wise where its request and the peer allow it, else SGLang's own chunk-wise transfer.

    Everything here runs on the scheduler thread.
    """

    # SGLang's alternative pins page numbers with CUDA; NumPy serves every device.
    supports_host_tensor_indices = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._side = self.kv_mgr.prefill_side
        self._key: RequestKey | None = None
        self._req: Any = None
        self._req_to_token: Any = None
        self._sent: TransferReport | None = None
        self._statistics: PromptStatistics | None = None

    @property
    def statistics(self) -> PromptStatistics | None:
        """What the attention backend should show this request's queries to, if anything."""
        return self._statistics if self.conclude_state is None else None

    @property
    def pushes_layers(self) -> bool:
        """Whether the attention backend should report this request's layers."""
        return self._key is not None and self.conclude_state is None

    def note_request(self, req: Any, req_to_token: Any) -> None:
        """What only the request knows: wishes of its own, its row. Called before `init`."""
        self._req, self._req_to_token = req, req_to_token
        if requested_statistics(req, self.kv_mgr.settings.statistics):
            self._statistics = self._side.statistics_of(len(req.origin_input_ids))

    def statistics_failed(self) -> None:
        """They are an extra: the request goes on without."""
        self._statistics = None
        self.kv_mgr.sink.count(catalog.STATISTICS_FAILURES)

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        super().init(num_kv_indices, aux_index)
        reason = why_full(self._req, self.kv_mgr.settings.mode)
        self._key = self._side.open(self.bootstrap_room, num_kv_indices, reason)

    def layer_written(self, layer: int, start: int, src_pages: npt.NDArray[np.int32]) -> None:
        """The layer's KV of these page positions is in the pool; returns at once."""
        if self._key is not None:
            self._side.agent.layer_written(self._key, layer, start, src_pages)

    def _poll_with_status(self, check_status: Any) -> KVPoll:
        if self.conclude_state is None:
            reason = self._side.rejection(self.bootstrap_room)
            if reason is not None:
                self.kv_mgr.record_failure(self.bootstrap_room, reason)
                self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)
        status = super()._poll_with_status(check_status)
        if status == KVPoll.Success and self._req is not None:
            self._attach_report()
        return status

    def _attach_report(self) -> None:
        """SGLang releases the pages right after it has seen success."""
        req, self._req = self._req, None
        report: dict[str, Any] = {"mode": "full"}
        if self._key is not None:
            self._sent = self._side.finish(self._key)
        if self._sent is not None:
            report = {"mode": "layerwise", **transfer_values(self._sent)}
        if self.kv_mgr.settings.debug:
            report["kv_digest"] = kv_digest(
                self.kv_mgr.kv_args,
                self._req_to_token,
                req.kv.req_pool_idx,
                len(req.origin_input_ids),
            )
        taken, self._statistics = self._statistics, None
        if taken is not None:
            self.kv_mgr.sink.observe(catalog.STATISTICS_SECONDS, taken.seconds)
            report |= statistics_values(taken, scores=self.kv_mgr.settings.debug)
        attach_report(req, report)

    def get_transfer_metric(self) -> KVTransferMetric:
        """SGLang's own series, from what was really sent."""
        metric = super().get_transfer_metric()
        if self._sent is not None:
            metric.transfer_total_bytes = self._sent.total_bytes
            metric.transfer_latency_s = self._sent.transfer_s
        elif self._key is None and self.conclude_state == KVPoll.Success:
            self.kv_mgr.sink.count(catalog.SENT_BYTES, metric.transfer_total_bytes, path=FULL_PATH)
        return metric

    def abort(self) -> None:
        self._statistics = None
        self._side.abort_room(self.bootstrap_room)
        super().abort()

    def clear(self) -> None:
        self._statistics = None
        super().clear()
        self._side.withdraw(self.bootstrap_room)
        if self._key is not None and self._sent is None:
            # Delivered or not, SGLang is done with it; what still runs is followed to its end.
            self._side.finish(self._key)
