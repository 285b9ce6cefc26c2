"""Work already done, so that an interrupted measurement goes on where it stopped.

One JSON object a line: first what the work is, then a key and a value per finished piece. A file of other work, or
one that ends in the middle of a line, is not an error: the former is started anew, the latter loses its last line.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smartgen.profiler.errors import ProfilerError


class Journal:
    """`work` describes everything that the values depend on; it decides whether old values still count.

    Raises ProfilerError when the file cannot be written.
    """

    def __init__(self, path: Path, work: Mapping[str, Any]) -> None:
        self._path = path
        self._done: dict[str, Any] = {}
        header = json.dumps(work, sort_keys=True)
        lines = _lines(path)
        self.resumed = bool(lines) and lines[0] == header
        if self.resumed:
            for line in lines[1:]:
                key, value = json.loads(line)
                self._done[key] = value
        # Written anew either way: drops a broken last line.
        kept = [json.dumps([key, value]) for key, value in self._done.items()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([header, *kept]) + "\n")
        except OSError as error:
            raise ProfilerError(
                f"{path} cannot be written ({error.strerror}); finished work is kept there, make room for it"
            ) from error

    def __contains__(self, key: str) -> bool:
        return key in self._done

    def __getitem__(self, key: str) -> Any:
        """The value of a finished piece."""
        return self._done[key]

    def put(self, key: str, value: Any) -> None:
        """Keep the value of a piece, as a later run will see it."""
        line = json.dumps([key, value])
        with self._path.open("a") as file:
            file.write(line + "\n")
        self._done[key] = json.loads(line)[1]

    def remove(self) -> None:
        """The work is finished."""
        self._path.unlink()


def _lines(path: Path) -> list[str]:
    """Whole lines that are JSON; reading stops at the first that is not."""
    if not path.exists():
        return []
    good: list[str] = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            json.loads(line)
        except json.JSONDecodeError:
            break
        good.append(line)
    return good
