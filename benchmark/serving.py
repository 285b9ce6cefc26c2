"""Serves SGLang's own benchmark client through the router and checks that nothing is lost.

Every request must succeed, and afterwards both servers must have exactly as many free KV tokens
as before. Servers and router run on this machine's loopback.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from arguments import logs_of, model_of, parser
from main import console, run
from rich.table import Table
from smartgen.launch import ServeMode
from smartgen_lab.cluster import Ground, PairServers, local_places, routed_pair
from smartgen_lab.measure import Records, Scenario, flush_cache, load_scenario, wait_for_free_tokens

_TIMEOUT_S = 900


class Load(Scenario, frozen=True, kw_only=True):
    name: str
    requests: int
    input: int
    output: int
    concurrency: int


class Settings(Scenario, frozen=True, kw_only=True):
    modes: list[str]
    chunk_tokens: int
    transfer_timeout_s: int
    seed: int
    loads: list[Load]


def serve(settings: Settings, mode: ServeMode, model: Path, logs: Path) -> list[dict[str, Any]]:
    """One row per load."""
    ground = Ground(
        model=model,
        chunk_tokens=settings.chunk_tokens,
        transfer_timeout_s=settings.transfer_timeout_s,
    )
    with routed_pair(ground, mode, local_places(), logs / mode.value) as servers:
        assert servers.router is not None
        rows = []
        for load in settings.loads:
            before = _free_tokens(servers)
            result = _drive(load, servers.router.url, model, settings.seed)
            servers.require_alive()
            after = _free_tokens(servers, before)
            rows.append(
                {
                    "mode": mode.value,
                    "load": load.name,
                    "requests": load.requests,
                    "completed": result["completed"],
                    "duration_s": result["duration"],
                    "output_tokens_per_s": result["output_throughput"],
                    "ttft_ms": result["median_ttft_ms"],
                    "tpot_ms": result["median_tpot_ms"],
                    "free_tokens_before": before,
                    "free_tokens_after": after,
                    "good": result["completed"] == load.requests
                    and before == after
                    and None not in before.values(),
                }
            )
        return rows


def _free_tokens(
    servers: PairServers, wanted: dict[str, int | None] | None = None
) -> dict[str, int | None]:
    """Per server, with empty prefix caches."""
    for spec in servers.specs:
        flush_cache(spec.url)
    return {
        spec.name: wait_for_free_tokens(spec.url, (wanted or {}).get(spec.name))
        for spec in servers.specs
    }


def _drive(load: Load, url: str, model: Path, seed: int) -> dict[str, Any]:
    """SGLang's result record. Raises SystemExit with the client's last words."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.jsonl"
        command = [
            *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"),
            *("--base-url", url, "--model", str(model), "--tokenizer", str(model)),
            *("--dataset-name", "random-ids", "--random-range-ratio", "1", "--tokenize-prompt"),
            *("--random-input-len", str(load.input), "--random-output-len", str(load.output)),
            *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
            *("--seed", str(seed), "--disable-tqdm", "--output-file", str(output)),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0 or not output.exists():
            raise SystemExit(f"sglang.bench_serving failed:\n{(done.stdout + done.stderr)[-2000:]}")
        return dict(json.loads(output.read_text().splitlines()[-1]))


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("mode, load")
    for title in ("requests", "seconds", "tokens/s", "TTFT ms", "TPOT ms", "free tokens"):
        table.add_column(title, justify="right")
    for row in rows:
        before, after = row["free_tokens_before"], row["free_tokens_after"]
        table.add_row(
            f"{row['mode']}, {row['load']}",
            f"{row['completed']}/{row['requests']}",
            f"{row['duration_s']:.1f}",
            f"{row['output_tokens_per_s']:.1f}",
            f"{row['ttft_ms']:.0f}",
            f"{row['tpot_ms']:.0f}",
            "as before" if before == after else f"{before} -> {after}",
        )
    console.print(table)


def main() -> int:
    arguments_parser = parser("serving", sys.modules[__name__].__doc__ or "")
    arguments_parser.add_argument("--mode", action="append", help="may be repeated")
    arguments_parser.add_argument("--load", action="append", help="name of a load; may be repeated")
    arguments_parser.add_argument("--requests", type=int, help="fewer requests, for a first try")
    chosen = arguments_parser.parse_args()
    settings = load_scenario(Settings, chosen.scenario, modes=chosen.mode)
    loads = [load for load in settings.loads if chosen.load is None or load.name in chosen.load]
    limit = chosen.requests or max(load.requests for load in settings.loads)
    settings = load_scenario(
        Settings,
        chosen.scenario,
        modes=chosen.mode,
        loads=[{**load.as_dict(), "requests": min(limit, load.requests)} for load in loads],
    )
    model, logs = model_of(chosen), logs_of(chosen)
    console.print(f"logs in {logs}", highlight=False)
    rows: list[dict[str, Any]] = []
    with Records(chosen.json, "serving", settings.as_dict()) as records:
        for mode in settings.modes:
            found = serve(settings, ServeMode(mode), model, logs)
            for row in found:
                records.add("load", **row)
            rows += found
    show(rows)
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    run(main)
