"""The work of `scripts/install`, with the standard library only. Run it from the repository root.

A stamp in .venv holds a hash of everything the installation depends on; while it matches, there
is nothing to do. The project is installed editable, its kernels are built from `sgl-kernel/`.
"""

import argparse
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = "sgl-kernel"
_HASHED_FILES = ("pyproject.toml", "constraints.txt", "scripts/install.py")
# Mooncake's engine links against them (the same list as in smartgen.transport).
_MOONCAKE_LIBRARIES = {
    "libibverbs.so.1": "libibverbs1",
    "libnuma.so.1": "libnuma1",
    "libcurl.so.4": "libcurl4",
}
_NOT_SOURCES = {"build", "dist", "__pycache__"}


class Refused(Exception):
    """One sentence that names cause and remedy."""


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    venv = ROOT / ".venv"
    venv.mkdir(exist_ok=True)
    try:
        with (venv / ".install-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            install(venv, options.flavour or detected_flavour(), options.dev, options.force)
    except Refused as refusal:
        print(f"install: {refusal}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"install: {' '.join(error.cmd[:6])} ... failed, see above", file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/install", description="Make .venv ready; does nothing when it already is."
    )
    flavour = parser.add_mutually_exclusive_group()
    for name, text in (("cpu", "for a machine without a GPU"), ("cuda", "for NVIDIA GPUs")):
        flavour.add_argument(
            f"--{name}",
            dest="flavour",
            action="store_const",
            const=name,
            help=f"{text} (default: whether nvidia-smi lists a GPU)",
        )
    parser.add_argument(
        "--dev", action="store_true", help="with the tools of scripts/test and check"
    )
    parser.add_argument("--force", action="store_true", help="even if nothing has changed")
    return parser.parse_args(arguments)


def install(venv: Path, flavour: str, dev: bool, force: bool) -> None:
    digest = digest_of(ROOT)
    if not force and is_stamped(venv, digest, flavour, dev):
        print("install: .venv is up to date", file=sys.stderr)
        return
    require_system_packages(flavour)
    python = require_venv(venv)
    for old in venv.glob(".stamp-*"):
        old.unlink()
    extras = f"{flavour},dev" if dev else flavour
    targets = [f"./{KERNELS}"] if flavour == "cpu" else []
    print(f"install: installing smartgen[{extras}] into .venv (some minutes)", file=sys.stderr)
    subprocess.run(
        [
            *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--constraint", "constraints.txt", *targets, "--editable", f".[{extras}]"),
        ],
        cwd=ROOT,
        check=True,
        # Also pins what is used to build the two local packages.
        env={**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")},
        stdout=sys.stderr,
    )
    stamp_file(venv, flavour, dev).write_text(digest)
    print("install: done", file=sys.stderr)


def digest_of(root: Path) -> str:
    """Changes with anything that changes what would be installed, and with this Python."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (*(root / name for name in _HASHED_FILES), *kernel_sources(root)):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kernel_sources(root: Path) -> Iterator[Path]:
    for path in sorted((root / KERNELS).rglob("*")):
        below = path.relative_to(root / KERNELS)
        if path.is_file() and path.suffix != ".so" and not _NOT_SOURCES.intersection(below.parts):
            yield path


def stamp_file(venv: Path, flavour: str, dev: bool) -> Path:
    return venv / f".stamp-{flavour}{'-dev' if dev else ''}"


def is_stamped(venv: Path, digest: str, flavour: str, dev: bool) -> bool:
    """An installation with the development tools serves those who need none."""
    stamps = [stamp_file(venv, flavour, True)] + ([] if dev else [stamp_file(venv, flavour, False)])
    return any(stamp.is_file() and stamp.read_text() == digest for stamp in stamps)


def detected_flavour() -> str:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if listed.returncode == 0 and "GPU" in listed.stdout else "cpu"


def require_system_packages(flavour: str) -> None:
    """Install what is missing as root on Debian, else say it."""
    missing = missing_packages(flavour)
    if not missing:
        return
    command = f"apt-get install --yes --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Refused(f"system packages are missing; run: sudo {command}")
    print(f"install: {command}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (
        ["apt-get", "update", "-qq"],
        command.replace("install", "install -qq", 1).split(),
    ):
        subprocess.run(step, check=True, env=environment, stdout=sys.stderr)


def missing_packages(flavour: str) -> list[str]:
    """Debian's names of what this machine lacks."""
    missing = [package for name, package in _MOONCAKE_LIBRARIES.items() if not _loads(name)]
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if flavour == "cpu":
        if shutil.which(os.environ.get("CXX", "g++")) is None:
            missing.append("g++")
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            missing.append("python3-dev")
    return missing


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def require_venv(venv: Path) -> str:
    """The Python of a virtual environment that has pip; made anew where it is damaged."""
    python = venv / "bin" / "python"
    works = (
        python.exists()
        and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode
    )
    if not works:
        print("install: making .venv", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    return str(python)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
