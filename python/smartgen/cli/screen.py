"""What the commands share of the terminal: results go to stdout, everything else to stderr."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smartgen.client import RequestFailed
from smartgen.launch import LaunchError
from smartgen.model import FetchFailed
from smartgen.profile import ProfileError
from smartgen.profiler.errors import ProfilerError
from smartgen.select import SelectError

_WIDEST = 500

notes = Console(stderr=True, highlight=False, soft_wrap=True)
results = Console(highlight=False, soft_wrap=True)


def full_width(table: Table) -> Table:
    """As wide as it needs: a name or number cut to fit the terminal would say nothing."""
    table.width = Console(width=_WIDEST).measure(table).maximum
    return table


@contextmanager
def one_sentence_errors() -> Iterator[None]:
    """Known failures end the command with one sentence and exit status 1, without a traceback."""
    try:
        yield
    except LaunchError as error:
        if error.tail:
            notes.print(escape(error.tail), style="dim")
        notes.print(f"smartgen: {escape(str(error))}", style="bold red")
        raise typer.Exit(1) from error
    except (FetchFailed, ProfileError, ProfilerError, RequestFailed, SelectError) as error:
        notes.print(f"smartgen: {escape(str(error))}", style="bold red")
        raise typer.Exit(1) from error


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """A line per step; on a terminal the current one has a moving sign until the next begins."""
    with notes.status("starting") as status:

        def show(step: str) -> None:
            notes.print(escape(step))
            status.update(escape(step))

        yield show


def terminate_like_interrupt() -> None:
    """SIGTERM and a closed terminal take the same way out as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
