"""The result file: a header, then the rows of one prompt after the other. A run that was broken off goes on."""

import json
from pathlib import Path
from typing import Any, TextIO

from smartgen.profiler.errors import ProfilerError

from smartgen_lab.measure import header

Row = dict[str, Any]


class Results:
    """Opens `path`; what it holds of the same settings counts as done. None keeps rows in memory only."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        # As they come back from JSON, for the comparison.
        settings = json.loads(json.dumps(settings))
        lines = _lines(path)
        if path is not None and path.exists() and path.stat().st_size and not _is_ours(lines):
            raise ProfilerError(f"{path} holds no results of this benchmark; give another file")
        self.rows: list[Row] = []
        self.resumed = bool(lines) and lines[0].get("settings") == settings
        self._file: TextIO | None = None
        if self.resumed:
            self.rows = _whole_prompts(lines[1:])
            first = lines[0]
        else:
            first = header("accuracy", settings)
        if path is not None:
            kept = "".join(json.dumps(line) + "\n" for line in (first, *self.rows))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(kept)
            except OSError as error:
                raise ProfilerError(f"{path} cannot be written ({error.strerror})") from error
            self._file = path.open("a")

    def done(self) -> set[str]:
        return {row["prompt"] for row in self.rows}

    def add(self, rows: list[Row]) -> None:
        """All rows of one prompt; the last one says so, for a reader of a broken file."""
        rows[-1]["last"] = True
        self.rows += rows
        if self._file is not None:
            self._file.write("".join(json.dumps(row) + "\n" for row in rows))
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _is_ours(lines: list[Row]) -> bool:
    return bool(lines) and lines[0].get("benchmark") == "accuracy"


def _lines(path: Path | None) -> list[Row]:
    """Objects up to the first line that is none."""
    if path is None or not path.exists():
        return []
    found: list[Row] = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise ProfilerError(f"{path} cannot be read ({error.strerror})") from error
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(row, dict):
            break
        found.append(row)
    return found


def _whole_prompts(rows: list[Row]) -> list[Row]:
    ends = [index for index, row in enumerate(rows) if row.get("last")]
    return rows[: ends[-1] + 1] if ends else []
