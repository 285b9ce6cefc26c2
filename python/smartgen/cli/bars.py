"""One bar per stage of a long measurement, with the time its stage still takes."""

from dataclasses import dataclass, field

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from smartgen.cli.screen import notes


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=notes,
    )


@dataclass
class Bars:
    """Use `progress` as a context, then tell of stages and pieces."""

    progress: Progress = field(default_factory=_progress)
    _task: TaskID = field(init=False)

    def stage(self, name: str, pieces: int) -> None:
        self._task = self.progress.add_task(name, total=pieces)

    def done(self) -> None:
        self.progress.advance(self._task)
