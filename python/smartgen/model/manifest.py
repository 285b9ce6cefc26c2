"""What a finished model folder contains, so that a damaged one is noticed before it is served.

`smartgen-manifest.json` holds each file's size, modification time and SHA-256. Whoever finds size
and time unchanged trusts the checksum; a full check reads every byte.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST_NAME = "smartgen-manifest.json"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20


def write_manifest(folder: Path, source: str) -> None:
    """Record every file of `folder`. `source` says what it was made from."""
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
            "sha256": sha256(path),
        }
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST_NAME
    }
    text = json.dumps({"format": _FORMAT, "source": source, "files": files}, indent=2) + "\n"
    with (folder / MANIFEST_NAME).open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def problem(folder: Path, source: str, *, full: bool = False) -> str | None:
    """None when `folder` is what was written; else what is wrong with it, in a few words.

    A file whose size is right and whose time has changed (a copy, a restored backup) is read;
    with `full` every file is.
    """
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text())
        if manifest["format"] != _FORMAT or manifest["source"] != source:
            return "it was made by another version"
        entries = manifest["files"].items()
        return next(
            (
                text
                for name, entry in entries
                if (text := _entry_problem(folder / name, entry, full))
            ),
            None,
        )
    except FileNotFoundError:
        return "it has no manifest"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest cannot be read"


def _entry_problem(path: Path, entry: dict[str, Any], full: bool) -> str | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return f"{path.name} is missing"
    if status.st_size != entry["bytes"]:
        return f"{path.name} has {status.st_size} bytes instead of {entry['bytes']}"
    unchanged = status.st_mtime_ns == entry["mtime_ns"]
    if (full or not unchanged) and sha256(path) != entry["sha256"]:
        return f"{path.name} has another checksum"
    return None


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()
