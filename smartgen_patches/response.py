"""What the client and the metrics learn about a transfer: `meta_info["smartgen"]` and TTST.

Runs on the decode server, whose response is the one that reaches the client.
"""

import time
from collections.abc import Callable
from typing import Any

from smartgen.metrics import catalog
from smartgen_patches.telemetry import metrics_sink

_REPORT = "_smartgen_report"
_ARRIVED = "_smartgen_arrived"
KEY = "smartgen"


def before_commit_transfer(queue: Any, decode_req: Any) -> None:
    """Hook on DecodeTransferQueue._commit_transfer_to_req, which then drops the receiver."""
    take = getattr(decode_req.kv_receiver, "take_report", None)
    if take is not None:
        setattr(decode_req.req, _REPORT, take())
        setattr(decode_req.req, _ARRIVED, decode_req.kv_receiver.arrived)


def after_decode_step(result: None, processor: Any, batch: Any, step: Any) -> None:
    """Hook on process_batch_result_decode: the step that made the second token stamps TTST."""
    for req in batch.reqs:
        report = getattr(req, _REPORT, None)
        if report is not None and "ttst_s" not in report and len(req.output_ids) >= 2:
            report["ttst_s"] = round(time.monotonic() - getattr(req, _ARRIVED), 6)
            metrics_sink().observe(catalog.TTST_SECONDS, report["ttst_s"])


def around_build_customized_info(
    original: Callable[..., dict[str, list[Any]]], streamer: Any, reqs: list[Any]
) -> dict[str, list[Any]]:
    """Hook on SchedulerOutputStreamer.build_additional_customized_info.

    SGLang joins the returned lists over a response's chunks, so the report is given once, with
    the finishing chunk.
    """
    info = original(streamer, reqs)
    reports = [getattr(req, _REPORT, None) if req.finished() else None for req in reqs]
    if any(report is not None for report in reports):
        info[KEY] = [[report] if report is not None else [] for report in reports]
    return info
