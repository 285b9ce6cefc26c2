"""Command-line arguments that all benchmarks share."""

import argparse
import os
import tempfile
from pathlib import Path

from smartgen.launch.checks import require_model, require_mooncake_libraries
from smartgen.model import default_folder

_FOLDER = Path(__file__).parent


def parser(name: str, description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"benchmark/{name}.py", description=description)
    made.add_argument("--model", type=Path, help="model folder (default: `smartgen model fetch`)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the measurements, JSONL")
    made.add_argument("--logs", type=Path, help="folder for the servers' logs (default: a new one)")
    made.add_argument(
        "--scenario", type=Path, default=_FOLDER / "scenarios" / f"{name}.toml", help="settings"
    )
    return made


def model_of(arguments: argparse.Namespace) -> Path:
    """A checked model folder. Raises CheckFailed with the remedy."""
    folder: Path = arguments.model or default_folder(os.environ)
    require_model(folder)
    require_mooncake_libraries()
    return folder.resolve()


def logs_of(arguments: argparse.Namespace) -> Path:
    return arguments.logs or Path(tempfile.mkdtemp(prefix="smartgen-benchmark-"))
