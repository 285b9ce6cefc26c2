"""`smartgen quickstart`: three questions through a real pair, timed and checked."""

import json
import time
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

import smartgen
from smartgen.cli.screen import notes, results
from smartgen.cli.serving import fetched_model, new_log_folder, running_pair
from smartgen.client import kv_bytes_by_path
from smartgen.client.chat import ChatAnswer, ask_chat
from smartgen.launch import LocalOptions, Pair, ServeMode


@dataclass(frozen=True)
class Question:
    """What is asked, how it is called in the table, and words that a right answer contains."""

    label: str
    text: str
    expected: tuple[str, ...]

    def is_answered_by(self, answer: str) -> bool:
        return all(word in answer.lower() for word in self.expected)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One question with its answer. `kv_bytes` by path, None where the server does not count."""

    question: Question
    answer: ChatAnswer
    kv_bytes: dict[str, float] | None

    @property
    def right(self) -> bool:
        return self.question.is_answered_by(self.answer.text)


def questions() -> tuple[Question, ...]:
    """Two short ones and one about a document of 1,860 tokens; the default model knows them all."""
    document = files("smartgen.cli").joinpath("lighthouse.txt").read_text()
    # The answer stands in the first half: the KV of the middle must have arrived intact.
    about = "Question: What colour is the cat? Answer in one short sentence."
    return (
        _short("What is the capital of France?", "paris"),
        _short("What is the chemical symbol for water?", "h2o"),
        Question(
            "What colour is the cat? (report)", f"{document}\n\n{about}", ("grey", "white paw")
        ),
    )


def _short(text: str, expected: str) -> Question:
    return Question(text, text, (expected,))


def run(*, mode: ServeMode, json_file: Path | None, keep: bool, start_timeout_s: float) -> None:
    """Raises typer.Exit(1) where an answer is wrong, LaunchError or RequestFailed on a fault."""
    options = LocalOptions(
        model=fetched_model(), logs=new_log_folder(), mode=mode, start_timeout_s=start_timeout_s
    )
    began = time.monotonic()
    with running_pair(options) as pair:
        started_s = time.monotonic() - began
        outcomes = [_ask(pair, question) for question in questions()]
        results.print(_table(outcomes))
        for outcome in outcomes:
            _show(outcome)
        if json_file is not None:
            _write(json_file, mode, started_s, outcomes)
        if keep:
            _wait(pair)
    wrong = [outcome for outcome in outcomes if not outcome.right]
    if wrong:
        notes.print(
            f"smartgen: {len(wrong)} of {len(outcomes)} answers are wrong; logs in {options.logs}",
            style="bold red",
        )
        raise typer.Exit(1)
    results.print(f"{len(outcomes)} of {len(outcomes)} answers are right.")


def _ask(pair: Pair, question: Question) -> Outcome:
    pair.require_alive()
    prefill = pair.spec.prefill.url
    before = kv_bytes_by_path(prefill) or {}
    answer = ask_chat(pair.spec.router.url, question.text, max_tokens=24)
    after = kv_bytes_by_path(prefill)
    moved = None
    if after is not None:
        moved = {path: count - before.get(path, 0.0) for path, count in after.items()}
    return Outcome(question=question, answer=answer, kv_bytes=moved)


def _wait(pair: Pair) -> None:
    results.print(f"serving at {pair.spec.router.url}/v1 (Ctrl-C stops)", markup=False)
    try:
        while True:
            pair.require_alive()
            time.sleep(0.5)
    except KeyboardInterrupt:
        return


def _show(outcome: Outcome) -> None:
    sign = "[green]right[/]" if outcome.right else "[bold red]WRONG[/]"
    results.print(
        f"{sign}  {escape(outcome.question.label)}  {escape(outcome.answer.text.strip())}"
    )


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("question", no_wrap=True, max_width=32)
    for column in ("prompt", "TTFT", "TTST", "TPOT", "KV moved"):
        table.add_column(column, justify="right")
    for outcome in outcomes:
        answer = outcome.answer
        table.add_row(
            outcome.question.label,
            f"{answer.prompt_tokens} tokens",
            _seconds(answer.timing.ttft_s),
            _seconds(answer.timing.ttst_s),
            _milliseconds(answer.timing.tpot_s),
            _megabytes(outcome.kv_bytes),
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.0f} ms"


def _megabytes(moved: dict[str, float] | None) -> str:
    return "-" if moved is None else f"{sum(moved.values()) / 1e6:.1f} MB"


def _write(path: Path, mode: ServeMode, started_s: float, outcomes: list[Outcome]) -> None:
    record: dict[str, Any] = {
        "version": smartgen.__version__,
        "mode": mode.value,
        "start_s": round(started_s, 3),
        "all_right": all(outcome.right for outcome in outcomes),
        "questions": [
            {
                "question": outcome.question.label,
                "answer": outcome.answer.text,
                "right": outcome.right,
                "prompt_tokens": outcome.answer.prompt_tokens,
                "completion_tokens": outcome.answer.completion_tokens,
                "kv_bytes_by_path": outcome.kv_bytes,
                **asdict(outcome.answer.timing),
            }
            for outcome in outcomes
        ],
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
