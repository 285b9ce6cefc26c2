"""How a long measurement tells where it is."""

from typing import Protocol


class Progress(Protocol):
    """Told of every stage and of every finished piece of it."""

    def stage(self, name: str, pieces: int) -> None: ...

    def done(self) -> None: ...
