"""Timing and reporting shared by the kernel benchmarks: medians, spread, ratios, JSON lines with machine facts."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import smartgen_kernel
import torch
from smartgen_lab.measure import fingerprint

THREADS, SEED = 1, 0
Calls = Sequence[Callable[[], object]]


@dataclass(frozen=True)
class Bench:
    """One run of a benchmark: what to time, how often, where to report."""

    isa: str | None
    repeats: int
    json: Path | None

    @classmethod
    def from_command_line(cls, description: str | None) -> Bench:
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument(
            "--isa",
            choices=smartgen_kernel.available_isas(),
            help="instruction set (default: fastest)",
        )
        parser.add_argument(
            "--repeats", type=int, default=9, help="timings per case (default: %(default)s)"
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="append one JSON line per case"
        )
        given = parser.parse_args()
        torch.set_num_threads(THREADS)
        torch.manual_seed(SEED)
        isa = given.isa or smartgen_kernel.isa()
        print(f"{fingerprint()['cpu']}, isa {isa}, one thread, torch {torch.__version__}")
        return cls(given.isa, given.repeats, given.json)

    def compare(
        self, case: str, *, operations: float = 0, bytes_read: float = 0, **routes: Calls
    ) -> None:
        """Times each route per call and prints it beside the first one."""
        for calls in routes.values():
            calls[0]()
        seconds: dict[str, list[float]] = {name: [] for name in routes}
        for _ in range(self.repeats):  # in turns, so that a change of clock rate hits all of them
            for name, calls in routes.items():
                seconds[name].append(time_calls(calls))
        first = next(iter(routes))
        base = statistics.median(seconds[first])
        print(f"\n{case}")
        for name, values in seconds.items():
            median = statistics.median(values)
            rate = f"{operations / median / 1e9:7.0f} GFLOP/s" if operations else ""
            rate += f"{bytes_read / median / 1e9:7.1f} GB/s" if bytes_read else ""
            print(
                f"  {name:14} {median * 1e3:9.3f} ms  ({min(values) * 1e3:.3f} .. {max(values) * 1e3:.3f})"
                f"  {median / base:6.2f} x {first} {rate}"
            )
        if self.json is not None:
            record = {
                "case": case,
                "isa": self.isa or smartgen_kernel.isa(),
                "seconds": seconds,
                "machine": {**fingerprint(), "threads": THREADS, "seed": SEED},
            }
            with self.json.open("a") as file:
                file.write(json.dumps(record) + "\n")


def time_calls(calls: Calls) -> float:
    """CPU seconds of this thread per call."""
    begin = time.thread_time()
    for call in calls:
        call()
    return (time.thread_time() - begin) / len(calls)
