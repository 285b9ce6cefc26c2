"""A result file: one JSON object a line, readable up to the point where a run was broken off.

The first line is a header with the settings and the machine, then come measurements, and the
summary last. Each has `kind`.
"""

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from smartgen_lab.measure.fingerprint import fingerprint


def header(benchmark: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The first line of a result file: what was asked for, when, on which machine."""
    return {
        "kind": "header",
        "benchmark": benchmark,
        "settings": settings,
        # A local path in the command would say nothing to a reader elsewhere.
        "command": " ".join(["python", *(_portable(word) for word in sys.argv)]),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **fingerprint(),
    }


def _portable(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


class Records:
    """Without a path nothing is written."""

    def __init__(self, path: Path | None, benchmark: str, settings: dict[str, Any]) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._header = header(benchmark, settings)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w")
        self.add(**self._header)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, kind: str, **values: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, **values}) + "\n")
            self._file.flush()
