"""Starts a local pair for a command: model, log folder, status lines."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smartgen.cli.screen import notes, steps
from smartgen.launch import LocalOptions, Pair, PairSpec, Process, plan_local_pair
from smartgen.model import cache_folder, default_folder, fetch

_KEPT_LOG_FOLDERS = 10


def fetched_model() -> Path:
    """The default model, made now if it is missing."""
    with steps() as show:
        return fetch(default_folder(os.environ), on_step=show).folder


def new_log_folder() -> Path:
    """A fresh folder in the cache; the oldest ones beyond ten are removed."""
    parent = cache_folder(os.environ) / "logs"
    folder = parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(parent.iterdir())[:-_KEPT_LOG_FOLDERS]:
        for log in old.glob("*.log"):
            log.unlink(missing_ok=True)
        if not any(old.iterdir()):
            old.rmdir()
    return folder


@contextmanager
def running_pair(options: LocalOptions) -> Iterator[Pair]:
    """The pair, ready; stopped when the block is left, however it is left."""
    spec = plan_local_pair(options)
    notes.print(f"starting {options.model.name}, mode {options.mode.value}; logs in {spec.logs}")
    with Pair(spec, os.environ, on_ready=lambda process: _show_ready(process, spec)) as pair:
        yield pair
        notes.print("stopping")


def _show_ready(process: Process, spec: PairSpec) -> None:
    part = {p.name: p for p in (spec.prefill, spec.decode, spec.router)}[process.name]
    notes.print(
        f"{process.name:8} ready after {process.uptime_s:4.1f} s   {part.url}   {process.log}",
        markup=False,
    )
