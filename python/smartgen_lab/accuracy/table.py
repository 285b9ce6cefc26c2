"""Rows of all prompts -> one line per method, with 95 % intervals and the ratio to the baseline of equal bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from smartgen.cli.screen import full_width
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.summary import Interval, mean_of, ratio_of

from smartgen_lab.accuracy.plan import BASELINE

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method over all prompts. Shares are of the prompts' KV bytes.

    ratio       mean KL over that of the uniform baseline with the same base, paired by prompt
    retrieval   of the prompts that full KV answers right, the share still right in a free run
    perplexity  over that of full KV, on the true continuation
    """

    method: str
    kl: Interval
    ratio: Interval | None
    agreement: float
    retrieval: float | None
    perplexity: float | None
    base: float
    digest: float
    fetched_first: float
    fetched: float


def lines(rows: Sequence[Row]) -> list[Line]:
    """In the order in which methods first occur; full KV is left out."""
    by_method: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["prompt"]] = row
    full = by_method.pop("full", {})
    return [_line(name, mine, _baseline(name, by_method), full) for name, mine in by_method.items()]


def _line(name: str, mine: dict[str, Row], baseline: dict[str, Row], full: dict[str, Row]) -> Line:
    rows = list(mine.values())
    retrieved = [row["retrieved"] for row in rows if row["retrieved"] is not None]
    nll = [row["nll"] - full[row["prompt"]]["nll"] for row in rows if "nll" in row]
    paired = [prompt for prompt in mine if prompt in baseline]
    return Line(
        method=name,
        kl=mean_of([row["kl"] for row in rows]),
        ratio=(
            ratio_of([mine[p]["kl"] for p in paired], [baseline[p]["kl"] for p in paired])
            if paired
            else None
        ),
        agreement=_mean(rows, "agreement"),
        retrieval=sum(retrieved) / len(retrieved) if retrieved else None,
        perplexity=2.718281828459045 ** (sum(nll) / len(nll)) if nll else None,
        base=_mean(rows, "base"),
        digest=_mean(rows, "digest"),
        fetched_first=_mean(rows, "fetched_first"),
        fetched=_mean(rows, "fetched"),
    )


def _baseline(name: str, by_method: dict[str, dict[str, Row]]) -> dict[str, Row]:
    fraction = name.partition("+")[0].rpartition("/")[2]
    return by_method.get(f"{BASELINE}/uniform/{fraction}", {})


def _mean(rows: Sequence[Row], field: str) -> float:
    return sum(row.get(field, 0.0) for row in rows) / len(rows)


def shown(found: Sequence[Line], title: str) -> Table:
    table = Table(
        "method",
        "KL (95 %)",
        f"/ {BASELINE} uniform",
        "agreement",
        "retrieval",
        "perplexity",
        "base",
        "digests",
        "fetched: step 1",
        "all",
        title=title,
    )
    for line in found:
        table.add_row(
            line.method,
            line.kl.show(4),
            line.ratio.show(2) if line.ratio else "-",
            f"{line.agreement:.1%}",
            "-" if line.retrieval is None else f"{line.retrieval:.0%}",
            "-" if line.perplexity is None else f"{line.perplexity:.3f}",
            *(f"{x:.1%}" for x in (line.base, line.digest)),
            *(f"{x:.2%}" for x in (line.fetched_first, line.fetched)),
        )
    return full_width(table)


def write_markdown(found: Sequence[Line], title: str, path: Path) -> None:
    try:
        path.write_text(f"{title}\n\n{markdown(found)}")
    except OSError as error:
        raise ProfilerError(f"{path} cannot be written ({error.strerror})") from error


def markdown(found: Sequence[Line]) -> str:
    """The same for a file in the repository."""
    head = (
        f"| method | KL (95 %) | / {BASELINE} uniform | agreement | retrieval | perplexity | base | digests "
        "| fetched, step 1 | fetched, all |"
    )
    rows = [head, "|---" * 10 + "|"]
    for line in found:
        ratio = line.ratio.show(2) if line.ratio else "-"
        retrieval = "-" if line.retrieval is None else f"{line.retrieval:.0%}"
        perplexity = "-" if line.perplexity is None else f"{line.perplexity:.3f}"
        rows.append(
            f"| {line.method} | {line.kl.show(4)} | {ratio} | {line.agreement:.1%} | {retrieval} | {perplexity} "
            f"| {line.base:.1%} | {line.digest:.1%} | {line.fetched_first:.2%} | {line.fetched:.2%} |"
        )
    return "\n".join(rows) + "\n"
