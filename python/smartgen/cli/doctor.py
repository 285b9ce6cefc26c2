"""`smartgen doctor`: what is installed, what was chosen and what stands in the way.

SGLang and its seam are asked in separate processes: this package imports neither.
"""

import platform
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum

from rich.markup import escape

import smartgen
from smartgen.cli.screen import results
from smartgen.config import variable
from smartgen.launch import CheckFailed, checks
from smartgen.transport import rdma_devices

_TIMEOUT_S = 120
_ASK_PLATFORM = (
    "from sglang.srt.platforms import current_platform as p; "
    "print(type(p).__name__, 'on', p.device_type)"
)
_ASK_KERNEL = "import smartgen_kernel as k; print(k.isa(), 'of', ', '.join(k.available_isas()))"
_OUR_PLATFORM, _OUR_PLUGIN = "smartgen_cpu", "smartgen"


class Verdict(Enum):
    """How a finding is shown; only BAD makes the command fail."""

    OK = "[green]ok  [/]"
    NOTE = "[yellow]note[/]"
    BAD = "[bold red]bad [/]"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    subject: str
    text: str


def run() -> bool:
    """Print every finding as soon as it is known; whether nothing is bad."""
    good = True
    for examine in (_versions, _library, _environment, _rdma, _platform, _kernel, _hooks):
        for finding in examine():
            good = good and finding.verdict is not Verdict.BAD
            results.print(f"{finding.verdict.value} {finding.subject:13} {escape(finding.text)}")
    return good


def _versions() -> list[Finding]:
    found = [
        Finding(
            Verdict.OK,
            "smartgen",
            f"{smartgen.__version__}, Python {platform.python_version()}, {platform.machine()}",
        )
    ]
    for name, wanted, installed in checks.pinned_versions():
        subject = "mooncake" if name.startswith("mooncake") else name
        if installed == wanted:
            found.append(Finding(Verdict.OK, subject, wanted))
        else:
            text = f"{name} {installed or 'is missing'}, needs {wanted}; run scripts/install"
            found.append(Finding(Verdict.BAD, subject, text))
    return found


def _library() -> list[Finding]:
    try:
        checks.require_mooncake_libraries()
    except CheckFailed as error:
        return [Finding(Verdict.BAD, "libraries", str(error))]
    return [Finding(Verdict.OK, "libraries", "all that Mooncake needs")]


def _environment() -> list[Finding]:
    """Variables that make SGLang skip this plugin or its platform without a word."""
    found = []
    chosen = variable("SGLANG_PLATFORM")
    if chosen and chosen != _OUR_PLATFORM:
        found.append(
            Finding(
                Verdict.BAD,
                "environment",
                f"SGLANG_PLATFORM={chosen} makes SGLang skip SmartGen's plugin too; unset it",
            )
        )
    plugins = variable("SGLANG_PLUGINS")
    if plugins is not None:
        names = {name.strip() for name in plugins.split(",")}
        missing = sorted({_OUR_PLATFORM, _OUR_PLUGIN} - names)
        if missing:
            found.append(
                Finding(
                    Verdict.BAD,
                    "environment",
                    f"SGLANG_PLUGINS={plugins} leaves out {', '.join(missing)}; add or unset it",
                )
            )
    return found or [Finding(Verdict.OK, "environment", "nothing hides the plugin")]


def _rdma() -> list[Finding]:
    devices = rdma_devices()
    if devices:
        return [Finding(Verdict.OK, "RDMA", ", ".join(devices))]
    return [Finding(Verdict.NOTE, "RDMA", "no device; KV travels over TCP")]


def _platform() -> list[Finding]:
    return [_asked("platform", _ASK_PLATFORM, "SGLang does not load; run scripts/install")]


def _kernel() -> list[Finding]:
    remedy = "not usable, SmartGen falls back to PyTorch; pip install ./sgl-kernel"
    found = _asked("kernels", _ASK_KERNEL, remedy)
    if found.verdict is Verdict.BAD and checks.has_gpu():
        return [Finding(Verdict.NOTE, found.subject, "not installed; only a CPU needs them")]
    return [found]


def _hooks() -> list[Finding]:
    status, output = _python("-m", "smartgen_patches.verify")
    if status == 0:
        return [Finding(Verdict.OK, "hooks", "fit the installed SGLang")]
    lines = output.splitlines() or ["the check printed nothing"]
    return [Finding(Verdict.BAD, "hooks", line) for line in lines]


def _asked(subject: str, code: str, remedy: str) -> Finding:
    status, output = _python("-c", code)
    last = (output.splitlines() or [""])[-1]
    if status == 0:
        return Finding(Verdict.OK, subject, last)
    return Finding(Verdict.BAD, subject, f"{remedy} ({last})")


def _python(*arguments: str) -> tuple[int, str]:
    """Exit status and output; standard error only where standard output is empty."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_TIMEOUT_S} s"
    return done.returncode, (done.stdout.strip() or done.stderr.strip())
