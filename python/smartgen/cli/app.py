"""The command tree. Options and their help live here, the work in the command's own module."""

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

import smartgen
from smartgen.cli import doctor as doctor_command
from smartgen.cli import up as up_command
from smartgen.cli.screen import (
    notes,
    one_sentence_errors,
    results,
    steps,
    terminate_like_interrupt,
)
from smartgen.launch import ServeMode
from smartgen.model import default_folder, fetch

app = typer.Typer(
    name="smartgen",
    help="SmartGen: KV-cache transfer for SGLang's prefill-decode disaggregation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="The small default model.", no_args_is_help=True)
app.add_typer(model_app, name="model")
profile_app = typer.Typer(
    help="What is known of a model's KV: which layers and blocks matter.", no_args_is_help=True
)
app.add_typer(profile_app, name="profile")

Mode = Annotated[
    ServeMode,
    typer.Option(help="How the KV cache travels; 'stock' is SGLang's own backend."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")]
StartTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds that the servers may take until they are ready.")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(smartgen.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""


@model_app.command("fetch")
def model_fetch(
    output: Annotated[
        Path | None, typer.Option(help="Folder to make; by default in smartgen's cache.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read every byte of a model that is there.")] = False,
) -> None:
    """Make the default model's folder, unless it is there already, and print its path."""
    with one_sentence_errors(), steps() as show:
        folder = output.absolute() if output is not None else default_folder(os.environ)
        fetched = fetch(folder, verify=verify, on_step=show)
    results.print(str(fetched.folder), markup=False)


@profile_app.command("build")
def profile_build(
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model folder; by default the fetched model.")
    ] = None,
    output: Annotated[Path, typer.Option(help="The profile to write.")] = Path("profile.json"),
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Calibrate on these instead of made prompts. JSON Lines: kind, prompt or messages."
        ),
    ] = None,
    page_size: Annotated[int, typer.Option(min=1, help="As the servers' --page-size.")] = 16,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens chosen together; by default one page.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the made prompts.")] = 1,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Only every N-th prompt from the K-th on, to see how much a profile depends on its prompts.",
        ),
    ] = None,
) -> None:
    """Measure a model's profile. Takes minutes; an interrupted run goes on where it stopped."""
    # Loads torch and transformers, which the other commands do without.
    from smartgen.cli import profile as profile_command

    terminate_like_interrupt()
    with one_sentence_errors():
        profile_command.build(
            profile_command.BuildOptions(
                model=model or fetch(default_folder(os.environ), on_step=notes.print).folder,
                output=output,
                prompts=prompts,
                page_size=page_size,
                block_size=block_size or page_size,
                seed=seed,
                part=part,
            )
        )


@profile_app.command("compare")
def profile_compare(
    first: Annotated[Path, typer.Argument(help="A profile.")],
    second: Annotated[Path, typer.Argument(help="Another profile of the same model.")],
) -> None:
    """How alike two profiles of one model rank its layers."""
    from smartgen.cli import profile as profile_command

    with one_sentence_errors():
        profile_command.compare(first, second)


@profile_app.command("show")
def profile_show(
    profile: Annotated[Path, typer.Argument(help="A profile that `smartgen profile build` wrote.")],
    picture: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Draw a heat map there.")
    ] = None,
) -> None:
    """Print a profile's tables."""
    from smartgen.cli import profile as profile_command

    with one_sentence_errors():
        profile_command.show(profile, picture)


@app.command(context_settings={"ignore_unknown_options": False})
def up(
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model folder; by default the fetched model.")
    ] = None,
    mode: Mode = ServeMode.LAYERWISE,
    host: Annotated[str, typer.Option(help="Address the router listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the router.")] = 30000,
    prefill_port: Port = 0,
    decode_port: Port = 0,
    bootstrap_port: Port = 0,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder for the logs; by default in smartgen's cache.")
    ] = None,
    start_timeout: StartTimeout = 180.0,
    server_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- [SERVER ARGS]...", help="Passed to both SGLang servers."),
    ] = None,
) -> None:
    """Serve a model with a prefill server, a decode server and a router on this machine."""
    terminate_like_interrupt()
    with one_sentence_errors():
        up_command.run(
            up_command.UpOptions(
                model=model,
                mode=mode,
                host=host,
                port=port,
                prefill_port=prefill_port,
                decode_port=decode_port,
                bootstrap_port=bootstrap_port,
                logs=log_dir,
                start_timeout_s=start_timeout,
                extra=tuple(server_args or ()),
            )
        )


@app.command()
def quickstart(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results there as well.")
    ] = None,
    mode: Mode = ServeMode.LAYERWISE,
    keep: Annotated[bool, typer.Option(help="Keep serving until Ctrl-C.")] = False,
    start_timeout: StartTimeout = 180.0,
) -> None:
    """Start a pair on free ports, ask three questions, check the answers, stop everything."""
    # The only command that needs the OpenAI library, which takes a second to load.
    from smartgen.cli import quickstart as quickstart_command

    terminate_like_interrupt()
    with one_sentence_errors():
        quickstart_command.run(
            mode=mode, json_file=json_file, keep=keep, start_timeout_s=start_timeout
        )


@app.command()
def doctor() -> None:
    """Report versions, platform, libraries and whether the hooks fit the installed SGLang."""
    if not doctor_command.run():
        raise typer.Exit(1)


def main() -> None:
    """The console command. Instruments add their own groups, which this package may not import."""
    for found in entry_points(group="smartgen.commands"):
        app.add_typer(found.load(), name=found.name)
    app()
