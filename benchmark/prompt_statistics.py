"""What statistics cost prefill: the same prompts with and without them, on one server.

A request switches them off for itself, so that both kinds take turns on the same prefill server.
Three figures: the ratios of prefill time and of the prefill server's processor time, which other
work on the machine disturbs less, and the share by the server's own count, which sees what the
ratios' noise hides. Every prompt comes a second time too, from the prefix cache: then its last
queries are computed again, which without statistics the cache would have spared.
"""

import sys
from pathlib import Path
from typing import Any

from arguments import logs_of, model_of, parser
from main import console, run
from rich.table import Table
from smartgen.client import Answer, DualClient
from smartgen.launch import ServeMode
from smartgen_lab.cluster import Ground, PairServers, local_places, pair
from smartgen_lab.measure import (
    Prompts,
    Records,
    Scenario,
    cpu_seconds,
    load_scenario,
    prefill_seconds,
    spread,
)
from smartgen_lab.netns import LabError

_ON, _OFF = "on", "off"


class Settings(Scenario, frozen=True, kw_only=True):
    chunk_tokens: list[int]
    prompt_tokens: list[int]
    repeats: int
    most_share: float
    transfer_timeout_s: int
    seed: int


def measure(
    settings: Settings, chunk_tokens: int, model: Path, logs: Path, records: Records
) -> list[dict[str, Any]]:
    """One pair with this chunk size; a row of figures for each prompt length."""
    ground = Ground(
        model=model, chunk_tokens=chunk_tokens, transfer_timeout_s=settings.transfer_timeout_s
    )
    prompts = Prompts(model, settings.seed)
    summaries = []
    with pair(
        ground,
        ServeMode.LAYERWISE,
        local_places(),
        logs / str(chunk_tokens),
        prefill_extra=("--smartgen-statistics",),
    ) as servers:
        for tokens in settings.prompt_tokens:
            rows = []
            for repeat in range(settings.repeats + 1):
                prompt = prompts.make(tokens)
                # Alternating who goes first keeps a drift of the machine out of the comparison.
                for kind in (_ON, _OFF) if repeat % 2 else (_OFF, _ON):
                    for row in _measure(servers, prompt, kind):
                        row |= {"chunk_tokens": chunk_tokens, "tokens": tokens, "run": repeat}
                        if repeat:  # the first one warms up
                            rows.append(row)
                            records.add("request", **row)
            summaries.append(summary(settings, chunk_tokens, tokens, rows))
            records.add("summary", **summaries[-1])
    return summaries


def _measure(servers: PairServers, prompt: list[int], kind: str) -> list[dict[str, Any]]:
    """The prompt as a new one, and again."""
    client, pid = servers.client(), servers.processes["prefill"].pid
    client.flush_caches()
    rows = []
    for again in (False, True):
        before = cpu_seconds(pid)
        answer = _ask(client, prompt, kind)
        if bool(answer.cached_tokens) != again:
            raise LabError(f"prefill found {answer.cached_tokens} tokens of a prompt in its cache")
        rows.append(
            {
                "statistics": kind,
                "again": again,
                "prefill_s": prefill_seconds(answer),
                "cpu_s": cpu_seconds(pid) - before,
                "statistics_s": answer.prefill_meta_info["smartgen"][0].get("statistics_s"),
                "cached_tokens": answer.cached_tokens,
                "token_ids": list(answer.token_ids),
            }
        )
    return rows


def _ask(client: DualClient, prompt: list[int], kind: str) -> Answer:
    params = {"smartgen": {"statistics": kind == _ON}}
    return client.ask(
        prompt, max_new_tokens=2, sampling={"ignore_eos": True, "custom_params": params}
    )


def summary(
    settings: Settings, chunk_tokens: int, tokens: int, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """What is `again` stands there for comparison; only a new prompt's figures must hold."""
    new, again = (
        _compared([row for row in rows if row["again"] == kind]) for kind in (False, True)
    )
    return {
        "chunk_tokens": chunk_tokens,
        "tokens": tokens,
        "new": new,
        "again": again,
        "good": new["same_tokens"]
        and spread(new["shares"]).median < settings.most_share
        and spread(new["cpu_ratios"]).median < 1 + settings.most_share,
    }


def _compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios are of runs of the same prompt, right after one another."""

    def values(kind: str, what: str) -> list[Any]:
        return [row[what] for row in rows if row["statistics"] == kind]

    def ratios(what: str) -> list[float]:
        return [a / b for a, b in zip(values(_ON, what), values(_OFF, what), strict=True)]

    on, spent = values(_ON, "prefill_s"), values(_ON, "statistics_s")
    return {
        "on_s": on,
        "off_s": values(_OFF, "prefill_s"),
        "ratios": ratios("prefill_s"),
        "cpu_ratios": ratios("cpu_s"),
        "statistics_s": spent,
        "shares": [a / b for a, b in zip(spent, on, strict=True)],
        "same_tokens": values(_ON, "token_ids") == values(_OFF, "token_ids"),
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(show_edge=False, pad_edge=False, title="one thread, median (least-most)")
    table.add_column("chunk")
    for title in ("prompt", "", "off ms", "on ms", "on/off", "CPU on/off", "counted ms", "share %"):
        table.add_column(title, justify="right")
    for row in rows:
        for name in ("new", "again"):
            found = row[name]
            table.add_row(
                str(row["chunk_tokens"]),
                f"{row['tokens']:,}",
                name,
                *(spread([1e3 * s for s in found[kind]]).show(0) for kind in ("off_s", "on_s")),
                *(spread(found[what]).show(3) for what in ("ratios", "cpu_ratios")),
                spread([1e3 * s for s in found["statistics_s"]]).show(1),
                spread([100 * share for share in found["shares"]]).show(2),
            )
    console.print(table)


def main() -> int:
    arguments_parser = parser("prompt_statistics", sys.modules[__name__].__doc__ or "")
    arguments_parser.add_argument("--chunk", type=int, action="append", help="may be repeated")
    arguments_parser.add_argument("--tokens", type=int, action="append", help="may be repeated")
    arguments_parser.add_argument("--repeats", type=int, help="fewer, for a first try")
    chosen = arguments_parser.parse_args()
    settings = load_scenario(
        Settings,
        chosen.scenario,
        chunk_tokens=chosen.chunk,
        prompt_tokens=chosen.tokens,
        repeats=chosen.repeats,
    )
    model, logs = model_of(chosen), logs_of(chosen)
    console.print(f"logs in {logs}", highlight=False)
    rows: list[dict[str, Any]] = []
    with Records(chosen.json, "prompt_statistics", settings.as_dict()) as records:
        for chunk_tokens in settings.chunk_tokens:
            rows += measure(settings, chunk_tokens, model, logs, records)
    show(rows)
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    run(main)
