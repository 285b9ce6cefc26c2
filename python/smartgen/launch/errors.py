"""What can go wrong while starting and supervising, each with a sentence for the user."""

from pathlib import Path


class LaunchError(Exception):
    """One sentence that names cause and remedy; `tail` holds log lines worth showing below it."""

    def __init__(self, sentence: str, tail: str = "") -> None:
        super().__init__(sentence)
        self.tail = tail


class CheckFailed(LaunchError):
    """A check before the start failed; nothing has been started."""


class ProcessDied(LaunchError):
    """A supervised process ended by itself."""

    def __init__(self, name: str, exit_code: int, log: Path, tail: str) -> None:
        how = f"signal {exit_code - 128}" if exit_code > 128 else f"exit status {exit_code}"
        super().__init__(f"{name} ended unexpectedly ({how}); its log is {log}", tail)
        self.name = name
        self.exit_code = exit_code


class StartTimeout(LaunchError):
    """A process runs but did not become healthy in time."""

    def __init__(self, name: str, timeout_s: float, log: Path, tail: str) -> None:
        super().__init__(
            f"{name} was not ready after {timeout_s:.0f} s; see {log}, or allow more time with "
            "--start-timeout",
            tail,
        )
        self.name = name
