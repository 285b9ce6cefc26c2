"""Runs a benchmark and turns what its user can mend into one sentence."""

import sys
from collections.abc import Callable

from rich.console import Console
from smartgen.client import RequestFailed
from smartgen.launch import LaunchError
from smartgen_lab.netns import LabError

console = Console(width=None if sys.stdout.isatty() else 120)


def run(benchmark: Callable[[], int]) -> None:
    """Exits with the benchmark's status: 0 when what it checks held, 1 when it did not."""
    try:
        status = benchmark()
    except LaunchError as error:
        print(f"{error}\n{error.tail}", file=sys.stderr)
        status = 2
    except (LabError, RequestFailed) as error:
        print(error, file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
