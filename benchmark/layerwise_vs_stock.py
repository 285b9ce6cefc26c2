"""Time to second token of layer-wise, full and stock transfer over a link of a chosen speed.

Needs root. The link's rate follows from layer-wise's own prefill time, measured first, unshaped,
in the same session. Layer-wise and full take turns request by request on one pair; stock has its
own pair, in alternating blocks. A client outside the measured link times every token.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arguments import logs_of, model_of, parser
from main import console, run
from rich.table import Table
from smartgen.client import Answer, DualClient
from smartgen.launch import ServeMode
from smartgen_lab.cluster import Ground, PairServers, lab_places, pair
from smartgen_lab.measure import (
    WIRE_OVERHEAD,
    Limits,
    Prompts,
    Records,
    Scenario,
    kv_shape,
    load_scenario,
    prefill_seconds,
    spread,
)
from smartgen_lab.netns import DATA, Lab, LabError, Shape, one_to_one

OURS = (ServeMode.LAYERWISE, ServeMode.FULL)
STOCK = (ServeMode.STOCK,)
COLUMNS = {"ttft_s": "TTFT", "ttst_s": "TTST", "tpot_s": "TPOT", "prefill_s": "prefill"}


class Settings(Scenario, frozen=True, kw_only=True):
    prompt_tokens: int
    new_tokens: int
    chunk_tokens: list[int]
    ratio: float
    runs: int
    blocks: int
    calibration_runs: int
    transfer_timeout_s: int
    least_stock_over_layerwise: float  # of TTST, for chunks that hold the whole prompt
    seed: int


@dataclass(frozen=True, kw_only=True)
class Link:
    """kv_bytes_per_s: how fast KV moves when nothing else does; the shape counts headers too."""

    kv_bytes_per_s: float

    @property
    def shape(self) -> Shape:
        return Shape(bytes_per_s=self.kv_bytes_per_s * WIRE_OVERHEAD)


class Session:
    """All measurements of one chunk size."""

    def __init__(
        self, settings: Settings, chunk: int, model: Path, lab: Lab, logs: Path, records: Records
    ) -> None:
        self.settings = settings
        self.rows: list[dict[str, Any]] = []
        self.calibrated_prefill_s = 0.0
        self.layers, token_bytes = kv_shape(model)
        self.kv_bytes = settings.prompt_tokens * token_bytes
        self.ground = Ground(
            model=model, chunk_tokens=chunk, transfer_timeout_s=settings.transfer_timeout_s
        )
        self._lab = lab
        self._logs = logs / f"chunk{chunk}"
        self._records = records
        supply = Prompts(model, settings.seed)
        self._prompts = [supply.make(settings.prompt_tokens) for _ in range(settings.runs)]
        self._spare = supply

    @property
    def link(self) -> Link:
        return Link(
            kv_bytes_per_s=self.kv_bytes / (self.settings.ratio * self.calibrated_prefill_s)
        )

    def run(self) -> None:
        per_block = math.ceil(self.settings.runs / self.settings.blocks)
        for block in range(self.settings.blocks):
            turns = range(block * per_block, min((block + 1) * per_block, self.settings.runs))
            for modes in (OURS, STOCK):
                self._lab.shape("prefill", DATA, None)
                logs = self._logs / f"block{block}-{modes[0].value}"
                with pair(self.ground, modes[0], lab_places(self._lab), logs) as servers:
                    self._measure_block(servers, modes, block, turns)

    def _measure_block(
        self, servers: PairServers, modes: Sequence[ServeMode], block: int, turns: range
    ) -> None:
        client = servers.client()
        for mode in modes:
            self._ask(client, mode, self._spare.make(self.settings.prompt_tokens))
        if not self.calibrated_prefill_s:
            self._calibrate(client)
        self._lab.shape("prefill", DATA, self.link.shape)
        for mode in modes:
            self._ask(client, mode, self._spare.make(self.settings.prompt_tokens))
        for turn in turns:
            # Alternating who goes first keeps a drift of the machine out of the comparison.
            for mode in modes if turn % 2 == 0 else tuple(reversed(modes)):
                self._measure(client, mode, block, turn)
            servers.require_alive()

    def _calibrate(self, client: DualClient) -> None:
        times = []
        for _ in range(self.settings.calibration_runs):
            prompt = self._spare.make(self.settings.prompt_tokens)
            times.append(prefill_seconds(self._ask(client, ServeMode.LAYERWISE, prompt)))
        self.calibrated_prefill_s = spread(times).median
        need_s = 3 * self.settings.ratio * self.calibrated_prefill_s
        if need_s > self.settings.transfer_timeout_s:
            raise SystemExit(f"transfer_timeout_s must be at least {need_s:.0f} on this machine")
        self._records.add(
            "calibration",
            chunk_tokens=self.ground.chunk_tokens,
            prefill_s=times,
            kv_bytes=self.kv_bytes,
            kv_bytes_per_s=self.link.kv_bytes_per_s,
            shape_bytes_per_s=self.link.shape.bytes_per_s,
            burst_bytes=self.link.shape.burst_bytes,
            queue_bytes=self.link.shape.queue_bytes,
        )

    def _measure(self, client: DualClient, mode: ServeMode, block: int, turn: int) -> None:
        before = self._lab.sent_bytes("prefill", DATA)
        answer = self._ask(client, mode, self._prompts[turn])
        wire_bytes = self._lab.sent_bytes("prefill", DATA) - before
        if wire_bytes < self.kv_bytes:
            raise LabError(
                f"{wire_bytes} bytes crossed the measured link, the KV has {self.kv_bytes}"
            )
        sent = (answer.prefill_meta_info.get("smartgen") or [{}])[0]
        row = {
            "chunk_tokens": self.ground.chunk_tokens,
            "mode": mode.value,
            "block": block,
            "run": turn,
            "ttft_s": answer.timing.ttft_s,
            "ttst_s": answer.timing.ttst_s,
            "tpot_s": answer.timing.tpot_s,
            "prefill_s": prefill_seconds(answer),
            "tail_s": sent.get("tail_s"),
            "kv_bytes": sum(sent.get("bytes", {}).values()) or None,
            "overlapped_bytes": sent.get("overlapped_bytes"),
            "wire_bytes": wire_bytes,
            "token_ids": list(answer.token_ids),
        }
        self.rows.append(row)
        self._records.add("request", **row)

    def _ask(self, client: DualClient, mode: ServeMode, prompt: list[int]) -> Answer:
        client.flush_caches()
        # The same body for all but the mode's name, which stock SGLang does not look at.
        sampling = {"ignore_eos": True, "custom_params": {"smartgen": {"mode": mode.value}}}
        answer = client.ask(prompt, max_new_tokens=self.settings.new_tokens, sampling=sampling)
        if answer.cached_tokens:
            raise LabError(
                f"prefill found {answer.cached_tokens} tokens of a new prompt in its cache"
            )
        return answer

    def values(self, mode: ServeMode, column: str) -> list[float]:
        found = [row[column] for row in self.rows if row["mode"] == mode.value]
        return [value for value in found if value is not None]

    def summary(self) -> dict[str, Any]:
        ttst = {mode: spread(self.values(mode, "ttst_s")).median for mode in (*OURS, *STOCK)}
        prefill_s = spread(self.values(ServeMode.LAYERWISE, "prefill_s")).median
        return {
            "chunk_tokens": self.ground.chunk_tokens,
            "ttst_s": {mode.value: value for mode, value in ttst.items()},
            "stock_over_layerwise": ttst[ServeMode.STOCK] / ttst[ServeMode.LAYERWISE],
            "full_over_layerwise": ttst[ServeMode.FULL] / ttst[ServeMode.LAYERWISE],
            "ratio_calibrated": self.settings.ratio,
            "ratio_measured": self.kv_bytes / self.link.kv_bytes_per_s / prefill_s,
            "limits_s": self.limits().as_dict(),
            "same_tokens": self._same_tokens(),
        }

    def limits(self) -> Limits:
        return Limits(
            prefill_s=spread(self.values(ServeMode.LAYERWISE, "prefill_s")).median,
            move_s=self.kv_bytes / self.link.kv_bytes_per_s,
            step_s=spread(self.values(ServeMode.LAYERWISE, "tpot_s")).median,
            layers=self.layers,
            chunks=math.ceil(self.settings.prompt_tokens / self.ground.chunk_tokens),
        )

    def _same_tokens(self) -> bool:
        """Every mode gave the same tokens for the same prompt."""
        texts: dict[int, set[tuple[int, ...]]] = {}
        for row in self.rows:
            texts.setdefault(row["run"], set()).add(tuple(row["token_ids"]))
        return all(len(found) == 1 for found in texts.values())


def show(session: Session) -> None:
    link, limits = session.link, session.limits()
    console.print(
        f"\nchunk size {session.ground.chunk_tokens}: {session.settings.prompt_tokens} tokens, "
        f"{session.kv_bytes / 1e6:.1f} MB of KV at {link.kv_bytes_per_s / 1e6:.1f} MB/s = "
        f"{limits.move_s:.2f} s, R = {session.settings.ratio} by {session.calibrated_prefill_s:.2f} s "
        f"of unshaped prefill; burst {link.shape.burst_bytes} B, queue {link.shape.queue_bytes} B",
        highlight=False,
    )
    table = Table(show_edge=False, pad_edge=False, caption="seconds: median (lowest-highest)")
    table.add_column("mode")
    for title in (*COLUMNS.values(), "wire MB", "TTST limit"):
        table.add_column(title, justify="right")
    limit_of = {
        ServeMode.LAYERWISE: limits.layerwise_s,
        ServeMode.FULL: limits.full_s,
        ServeMode.STOCK: limits.full_s,
    }
    for mode in (*OURS, *STOCK):
        cells = [session.values(mode, column) for column in COLUMNS]
        wire_bytes = session.values(mode, "wire_bytes")
        table.add_row(
            f"{mode.value} (n={len(cells[0])})",
            *(spread(values).show() if values else "-" for values in cells),
            f"{spread(wire_bytes).median / 1e6:.1f}",
            f"{limit_of[mode]:.2f}",
        )
    console.print(table)
    summary = session.summary()
    console.print(
        f"TTST: stock / layerwise = {summary['stock_over_layerwise']:.2f}, full / layerwise = "
        f"{summary['full_over_layerwise']:.2f}; no transfer at all {limits.colocated_s:.3f} s; "
        f"R by prefill under load = {summary['ratio_measured']:.2f}; same tokens: "
        f"{'yes' if summary['same_tokens'] else 'NO'}",
        highlight=False,
    )


def main() -> int:
    arguments_parser = parser("layerwise_vs_stock", sys.modules[__name__].__doc__ or "")
    arguments_parser.add_argument("--runs", type=int, help="of each mode")
    arguments_parser.add_argument("--blocks", type=int)
    arguments_parser.add_argument("--ratio", type=float, help="R")
    arguments_parser.add_argument("--chunk", type=int, action="append", help="may be repeated")
    chosen = arguments_parser.parse_args()
    settings = load_scenario(
        Settings,
        chosen.scenario,
        runs=chosen.runs,
        blocks=chosen.blocks,
        ratio=chosen.ratio,
        chunk_tokens=chosen.chunk,
    )
    model, logs = model_of(chosen), logs_of(chosen)
    console.print(f"logs in {logs}", highlight=False)
    good = True
    with Records(chosen.json, "layerwise_vs_stock", settings.as_dict()) as records:
        for chunk in settings.chunk_tokens:
            with Lab(one_to_one()) as lab, lab.inside("client"):
                session = Session(settings, chunk, model, lab, logs, records)
                session.run()
            summary = session.summary()
            records.add("summary", **summary)
            show(session)
            if chunk >= settings.prompt_tokens:
                good &= summary["stock_over_layerwise"] >= settings.least_stock_over_layerwise
            good &= bool(summary["same_tokens"])
    return 0 if good else 1


if __name__ == "__main__":
    run(main)
