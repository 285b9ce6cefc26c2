"""Prefill and decode speed of one CPU server: SmartGen's kernels against SGLang's `torch_native`.

Both servers run at once with one thread each and take turns request by request, so that whatever
else the machine does touches both alike; only one works at a time. The stock server keeps the CPU
platform (without it SGLang does not start here) but loads no SmartGen plugin.

    python benchmark/cpu_speed.py --model FOLDER --json benchmark/results/cpu_speed.jsonl
"""

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import requests
from smartgen.launch import Process, Role, ServerSpec, wait_until_healthy
from smartgen.launch.ports import pick

fingerprint = dict

PROMPT_TOKENS = 6000
DECODE_TOKENS = 17
VOCABULARY = range(1000, 40000)
# What SmartGen's plugin sets by itself on a CPU; the stock server must have the same ground.
GROUND = (
    *("--page-size", "16", "--disable-overlap-schedule", "--sleep-on-idle"),
    *("--max-total-tokens", "20000", "--max-running-requests", "8", "--disable-radix-cache"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chunks", type=int, nargs="+", default=[8192, 4096])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for chunk in options.chunks:
        row = measure(options, chunk)
        print(table(row))
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


def measure(options: argparse.Namespace, chunk: int) -> dict[str, object]:
    """Both servers side by side with this chunk size; times in seconds."""
    times: dict[str, dict[str, list[float]]] = {
        name: {"prefill": [], "step": []} for name in ("stock", "smartgen")
    }
    randomly = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as logs:
        servers = start(options.model, chunk, Path(logs))
        try:
            for repeat in range(options.repeats + 1):
                prompt = randomly.choices(VOCABULARY, k=PROMPT_TOKENS)
                for name, (_, spec) in servers.items():
                    prefill, step = one_request(spec.url, prompt)
                    if repeat:  # the first one warms up
                        times[name]["prefill"].append(prefill)
                        times[name]["step"].append(step)
        finally:
            for process, _ in servers.values():
                process.stop()
    return {
        "benchmark": "cpu_speed",
        "chunk": chunk,
        "prompt_tokens": PROMPT_TOKENS,
        "seed": options.seed,
        "times_s": times,
        "prefill_ratio": ratio(times, "prefill"),
        "step_ratio": ratio(times, "step"),
        **fingerprint(),
    }


def start(model: Path, chunk: int, logs: Path) -> dict[str, tuple[Process, ServerSpec]]:
    servers = {}
    stock_only = {"SGLANG_PLUGINS": "smartgen_cpu"}
    for name, environment, port in zip(
        ("stock", "smartgen"), (stock_only, {}), pick(2), strict=True
    ):
        spec = ServerSpec(
            role=Role.AGGREGATED,
            model=model,
            port=port,
            extra=(*GROUND, "--chunked-prefill-size", str(chunk)),
            environment={"OMP_NUM_THREADS": "1", **environment},
        )
        process = Process(
            name,
            spec.argv(),
            log=logs / f"{name}.log",
            environment=spec.full_environment(os.environ),
        )
        servers[name] = (process, spec)
    wait_until_healthy(
        {process: f"{spec.url}/health" for process, spec in servers.values()}, timeout_s=300
    )
    return servers


def one_request(url: str, prompt: list[int]) -> tuple[float, float]:
    """Seconds of prefill (to the first token) and of one decode step (median of the gaps)."""
    body = {
        "input_ids": prompt,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": DECODE_TOKENS,
            "ignore_eos": True,
        },
        "stream": True,
    }
    stamps = [time.perf_counter()]
    with requests.post(f"{url}/generate", json=body, stream=True, timeout=600) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith(b"data: {"):
                stamps.append(time.perf_counter())
    if len(stamps) < DECODE_TOKENS:
        raise RuntimeError(f"{url} gave {len(stamps) - 1} chunks instead of {DECODE_TOKENS}")
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps[1:])]
    return stamps[1] - stamps[0], statistics.median(gaps)


def ratio(times: dict[str, dict[str, list[float]]], what: str) -> float:
    return statistics.median(times["stock"][what]) / statistics.median(times["smartgen"][what])


def table(row: dict[str, object]) -> str:
    lines = [f"chunk {row['chunk']}, {row['prompt_tokens']} tokens, one thread"]
    times: dict[str, dict[str, list[float]]] = row["times_s"]  # type: ignore[assignment]
    for what in ("prefill", "step"):
        cells = []
        for name in ("stock", "smartgen"):
            values = sorted(times[name][what])
            cells.append(
                f"{name} {statistics.median(values):.4f} s ({values[0]:.4f}..{values[-1]:.4f})"
            )
        lines.append(f"  {what:8s} {'  '.join(cells)}  ratio {row[what + '_ratio']:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
