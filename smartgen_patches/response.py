"""What the client and the metrics learn about a transfer: `meta_info["smartgen"]` and TTST.

The decode server's response is the one that reaches the client of a router; a client that posts
to both servers sees prefill's view as well.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from smartgen.metrics import catalog
from smartgen.runtime import PromptStatistics
from smartgen.select import Floats
from smartgen.transfer import TransferReport

from smartgen_patches.telemetry import metrics_sink

_REPORT = "_smartgen_report"
_ARRIVED = "_smartgen_arrived"
_KEY = "smartgen"


def attach_report(req: Any, report: dict[str, Any]) -> None:
    """`report` (plain JSON values) goes into the request's finishing response."""
    setattr(req, _REPORT, report)


def transfer_values(report: TransferReport) -> dict[str, Any]:
    """A sender's report as plain JSON values; times in seconds."""
    return {
        "bytes": {path.label: count for path, count in report.bytes_by_path},
        "resent_bytes": report.resent_bytes,
        "overlapped_bytes": report.overlapped_bytes,
        "transfer_s": round(report.transfer_s, 6),
        "tail_s": round(report.tail_s, 6),
    }


def statistics_values(taken: PromptStatistics, *, scores: bool) -> dict[str, Any]:
    """A prompt's statistics as plain JSON values; the scores themselves only if asked for.

    scores  [layers][blocks] to four digits, null for a block of which nothing is known; null
            altogether where the prompt was not computed to its end
    """
    values: dict[str, Any] = {"statistics_s": round(taken.seconds, 6)}
    if scores:
        found = taken.scores
        values["scores"] = None if found is None else [_plain_scores(row) for row in found]
    return values


def _plain_scores(row: Floats) -> list[float | None]:
    return [float(f"{score:.4g}") if np.isfinite(score) else None for score in row.tolist()]


def before_commit_transfer(queue: Any, decode_req: Any) -> None:
    """Hook on DecodeTransferQueue._commit_transfer_to_req, which then drops the receiver."""
    take = getattr(decode_req.kv_receiver, "take_report", None)
    if take is not None:
        report = take(decode_req.req, queue.scheduler.req_to_token_pool.req_to_token)
        attach_report(decode_req.req, report)
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
        info[_KEY] = [[report] if report is not None else [] for report in reports]
    return info
