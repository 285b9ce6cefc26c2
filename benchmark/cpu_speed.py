"""Prefill and decode speed of one CPU server: SmartGen's kernels against SGLang's `torch_native`.

Both servers run at once with one thread each and take turns request by request, so that whatever
else the machine does touches both alike; only one works at a time. The stock server keeps the CPU
platform (without it SGLang does not start here) but loads no SmartGen plugin.
"""

import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import torch
from arguments import logs_of, model_of, parser
from main import console, run
from rich.table import Table
from smartgen.client import RequestFailed
from smartgen.launch import Process, Role, ServerSpec, wait_until_healthy
from smartgen.launch.ports import pick
from smartgen_lab.measure import Prompts, Records, Scenario, kv_shape, load_scenario, spread

# What SmartGen's plugin sets by itself on a CPU; the stock server must have the same ground.
_GROUND = (
    *("--page-size", "16", "--disable-overlap-schedule", "--sleep-on-idle"),
    *("--max-total-tokens", "20000", "--max-running-requests", "8", "--disable-radix-cache"),
)
_STOCK, _OURS = "stock", "smartgen"
# The platform's name alone: without the plugin's, SGLang serves with its own operators.
_ENVIRONMENT = {_STOCK: {"SGLANG_PLUGINS": "smartgen_cpu"}, _OURS: {}}


class Settings(Scenario, frozen=True, kw_only=True):
    chunk_tokens: list[int]
    prompt_tokens: int
    decode_tokens: int
    repeats: int
    least_prefill_ratio: float
    least_step_ratio: float
    seed: int


def measure(settings: Settings, chunk_tokens: int, model: Path, logs: Path) -> dict[str, Any]:
    """Both servers side by side with this chunk size; times in seconds."""
    times: dict[str, dict[str, list[float]]] = {
        name: {"prefill": [], "step": []} for name in (_STOCK, _OURS)
    }
    prompts = Prompts(model, settings.seed)
    with _servers(model, chunk_tokens, logs) as urls:
        for repeat in range(settings.repeats + 1):
            prompt = prompts.make(settings.prompt_tokens)
            for name, url in urls.items():
                prefill_s, step_s = _one_request(name, url, prompt, settings.decode_tokens)
                if repeat:  # the first one warms up
                    times[name]["prefill"].append(prefill_s)
                    times[name]["step"].append(step_s)
    prefill_ratio, step_ratio = _ratio(times, "prefill"), _ratio(times, "step")
    _, token_bytes = kv_shape(model)
    step_bytes = _weight_bytes(model) + settings.prompt_tokens * token_bytes
    return {
        "chunk_tokens": chunk_tokens,
        "step_bytes": step_bytes,
        "step_floor_s": _read_once_s(step_bytes),
        "times_s": times,
        "prefill_ratio": prefill_ratio,
        "step_ratio": step_ratio,
        "good": prefill_ratio >= settings.least_prefill_ratio
        and step_ratio >= settings.least_step_ratio,
    }


def _weight_bytes(model: Path) -> int:
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def _read_once_s(nbytes: int) -> float:
    """Seconds to stream that many bytes from memory with one thread: the floor of a decode step."""
    torch.set_num_threads(1)
    block = torch.ones(nbytes // 8, dtype=torch.int64)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        block.sum()
        times.append(time.perf_counter() - began)
    return min(times)


@contextmanager
def _servers(model: Path, chunk_tokens: int, logs: Path) -> Iterator[dict[str, str]]:
    """URL of each server by name, ready; both are stopped when the block is left."""
    targets: dict[Process, str] = {}
    urls: dict[str, str] = {}
    try:
        for (name, environment), port in zip(_ENVIRONMENT.items(), pick(2), strict=True):
            spec = ServerSpec(
                role=Role.AGGREGATED,
                model=model,
                port=port,
                extra=(*_GROUND, "--chunked-prefill-size", str(chunk_tokens)),
                environment={"OMP_NUM_THREADS": "1", **environment},
            )
            log = logs / str(chunk_tokens) / f"{name}.log"
            process = Process(
                name, spec.argv(), log=log, environment=spec.full_environment(os.environ)
            )
            targets[process], urls[name] = f"{spec.url}/health", spec.url
        wait_until_healthy(targets, timeout_s=300)
        yield urls
    finally:
        for process in targets:
            process.stop()


def _one_request(name: str, url: str, prompt: list[int], decode_tokens: int) -> tuple[float, float]:
    """Seconds of prefill (to the first token) and of one decode step (median of the gaps)."""
    sampling = {"temperature": 0, "max_new_tokens": decode_tokens, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    began = time.perf_counter()
    arrivals: list[float] = []
    with requests.Session() as session:
        session.trust_env = False
        with session.post(f"{url}/generate", json=body, stream=True, timeout=600) as answer:
            if answer.status_code != 200:
                raise RequestFailed(name, answer.status_code, answer.text.strip())
            for line in answer.iter_lines():
                if line.startswith(b"data: {"):
                    arrivals.append(time.perf_counter())
    # One event may carry two tokens; fewer than that is no measurement.
    if len(arrivals) < decode_tokens - 1:
        raise RequestFailed(name, 200, f"{len(arrivals)} events for {decode_tokens} tokens")
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    return arrivals[0] - began, statistics.median(gaps)


def _ratio(times: dict[str, dict[str, list[float]]], what: str) -> float:
    return statistics.median(times[_STOCK][what]) / statistics.median(times[_OURS][what])


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(show_edge=False, pad_edge=False, title="one thread, median (least-most)")
    table.add_column("chunk")
    for title in ("", "stock ms", "SmartGen ms", "times as fast"):
        table.add_column(title, justify="right")
    for row in rows:
        for what in ("prefill", "step"):
            cells = (
                spread([1e3 * seconds for seconds in row["times_s"][name][what]]).show(1)
                for name in (_STOCK, _OURS)
            )
            table.add_row(str(row["chunk_tokens"]), what, *cells, f"{row[what + '_ratio']:.2f}")
    console.print(table)
    for row in rows:
        step = statistics.median(row["times_s"][_OURS]["step"])
        console.print(
            f"chunk {row['chunk_tokens']}: a step reads {row['step_bytes'] / 1e6:.0f} MB of weights "
            f"and KV; streaming them once takes {1e3 * row['step_floor_s']:.1f} ms, the step takes "
            f"{step / row['step_floor_s']:.1f} times that",
            highlight=False,
        )


def main() -> int:
    arguments_parser = parser("cpu_speed", sys.modules[__name__].__doc__ or "")
    arguments_parser.add_argument("--chunk", type=int, action="append", help="may be repeated")
    arguments_parser.add_argument("--repeats", type=int, help="fewer, for a first try")
    chosen = arguments_parser.parse_args()
    settings = load_scenario(
        Settings, chosen.scenario, chunk_tokens=chosen.chunk, repeats=chosen.repeats
    )
    model, logs = model_of(chosen), logs_of(chosen)
    console.print(f"logs in {logs}", highlight=False)
    rows = []
    with Records(chosen.json, "cpu_speed", settings.as_dict()) as records:
        for chunk_tokens in settings.chunk_tokens:
            rows.append(measure(settings, chunk_tokens, model, logs))
            records.add("speed", **rows[-1])
    show(rows)
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    run(main)
