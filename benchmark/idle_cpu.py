"""What waiting costs: CPU share of an idle pair, and of servers that wait for a slow transfer.

Needs root: the transfer is slow because the link between the servers is shaped. Counts all
processes of each server.
"""

import sys
import threading
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
    Prompts,
    Records,
    Scenario,
    cpu_shares,
    kv_shape,
    load_scenario,
)
from smartgen_lab.netns import DATA, Lab, LabError, Shape, one_to_one


class Settings(Scenario, frozen=True, kw_only=True):
    modes: list[str]
    chunk_tokens: int
    prompt_tokens: int
    settle_s: float
    measure_s: float
    transfer_s: float
    idle_limit: float
    waiting_limit: float
    transfer_timeout_s: int
    seed: int


class Slow(threading.Thread):
    """One request in the background, over a link on which it takes long."""

    def __init__(self, client: DualClient, prompt: list[int]) -> None:
        super().__init__(name="slow-request", daemon=True)
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self._ask = (client, prompt)

    def run(self) -> None:
        client, prompt = self._ask
        try:
            self.answer = client.ask(prompt, max_new_tokens=4)
        except Exception as error:
            # Raised again by the thread that waits for the result.
            self.error = error

    def result(self) -> Answer:
        self.join()
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


def measure(settings: Settings, mode: ServeMode, model: Path, logs: Path) -> dict[str, Any]:
    ground = Ground(
        model=model,
        chunk_tokens=settings.chunk_tokens,
        transfer_timeout_s=settings.transfer_timeout_s,
    )
    kv_bytes = settings.prompt_tokens * kv_shape(model)[1]
    shape = Shape(bytes_per_s=kv_bytes / settings.transfer_s * WIRE_OVERHEAD)
    prompts = Prompts(model, settings.seed)
    with (
        Lab(one_to_one()) as lab,
        lab.inside("client"),
        pair(ground, mode, lab_places(lab), logs / mode.value) as servers,
    ):
        client = servers.client()
        prefill_s = client.ask(prompts.make(settings.prompt_tokens), max_new_tokens=4).prefill_s
        idle = _shares_after(settings.settle_s, settings.measure_s, servers)
        lab.shape("prefill", DATA, shape)
        slow = Slow(client, prompts.make(settings.prompt_tokens))
        slow.start()
        # Prefill computes first; what is asked here is what waiting costs after that.
        waiting = _shares_after(1.5 * prefill_s + 0.5, settings.measure_s, servers)
        if not slow.is_alive():
            raise LabError("the transfer ended before it was measured; raise transfer_s")
        slow.result()
        return {
            "mode": mode.value,
            "idle": idle,
            "waiting": waiting,
            "good": sum(idle.values()) < settings.idle_limit
            and max(waiting.values()) < settings.waiting_limit,
        }


def _shares_after(delay_s: float, interval_s: float, servers: PairServers) -> dict[str, float]:
    threading.Event().wait(delay_s)
    return cpu_shares({name: p.pid for name, p in servers.processes.items()}, interval_s)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(show_edge=False, pad_edge=False, title="% of one core")
    table.add_column("mode")
    for title in ("idle: prefill", "decode", "both", "during a transfer: prefill", "decode"):
        table.add_column(title, justify="right")
    for row in rows:
        idle, waiting = row["idle"], row["waiting"]
        shares = [idle["prefill"], idle["decode"], sum(idle.values())]
        shares += [waiting["prefill"], waiting["decode"]]
        table.add_row(row["mode"], *(f"{100 * share:.1f}" for share in shares))
    console.print(table)


def main() -> int:
    arguments_parser = parser("idle_cpu", sys.modules[__name__].__doc__ or "")
    arguments_parser.add_argument("--mode", action="append", help="may be repeated")
    chosen = arguments_parser.parse_args()
    settings = load_scenario(Settings, chosen.scenario, modes=chosen.mode)
    model, logs = model_of(chosen), logs_of(chosen)
    console.print(f"logs in {logs}", highlight=False)
    rows = []
    with Records(chosen.json, "idle_cpu", settings.as_dict()) as records:
        for mode in settings.modes:
            rows.append(measure(settings, ServeMode(mode), model, logs))
            records.add("shares", **rows[-1])
    show(rows)
    # Stock's figures stand beside ours for comparison; only ours must hold.
    return 0 if all(r["good"] for r in rows if r["mode"] != ServeMode.STOCK.value) else 1


if __name__ == "__main__":
    run(main)
