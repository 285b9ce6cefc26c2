"""Options and help of `smartgen bench`; the work is in the instruments' own packages."""

import os
from pathlib import Path
from typing import Annotated

import typer
from smartgen.cli.bars import Bars
from smartgen.cli.screen import notes, one_sentence_errors, results
from smartgen.model import default_folder, fetch

app = typer.Typer(
    name="bench",
    help="Measurements that a stranger can run again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Measurements that a stranger can run again."""


@app.command()
def accuracy(
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model folder; by default the fetched model.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Model profile; by default the shipped one.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines: kind, prompt or messages, optionally answer. By default made ones."
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Result file; an interrupted run goes on from it."
        ),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there as well.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="PNG of quality over bytes.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 (as served) or float32.")] = "bfloat16",
    scale: Annotated[
        float, typer.Option(min=0.01, max=20, help="Times the usual number of made prompts.")
    ] = 1.0,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
) -> None:
    """What every way of choosing KV blocks costs in quality, on prompts that shaped no profile."""
    # Loads torch, transformers and matplotlib, which no other command should wait for.
    from smartgen_lab.accuracy import plot, table
    from smartgen_lab.accuracy.run import Wanted, run

    if dtype not in ("bfloat16", "float32"):
        raise typer.BadParameter(f"{dtype}; bfloat16 or float32 is expected", param_hint="--dtype")
    with one_sentence_errors():
        folder = model or fetch(default_folder(os.environ), on_step=notes.print).folder
        bars = Bars()
        with bars.progress:
            report = run(
                Wanted(
                    model=folder,
                    profile=profile,
                    prompts=prompts,
                    output=json_file,
                    dtype=dtype,
                    scale=scale,
                    only=tuple(method or ()),
                    seed=seed,
                ),
                bars,
            )
    found = table.lines(report.rows)
    title = f"{report.prompts} prompts, {dtype}" + (
        "" if report.floor is None else f"; floor of bf16 against float32: KL {report.floor:.4f}"
    )
    results.print(table.shown(found, title))
    with one_sentence_errors():
        if markdown is not None:
            table.write_markdown(found, title, markdown)
        if plot_file is not None:
            plot.quality_over_bytes(found, report.floor, plot_file)
