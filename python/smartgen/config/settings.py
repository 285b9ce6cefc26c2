"""The settings of one server, as one frozen value.

Owns defaults, allowed values and validation. Flags and documentation are generated from the
field metadata (`flags.py`), so a default is written in exactly one place.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from smartgen.core import Mode

# Bound on the KV cache of one server on the CPU platform, unless the user sets another.
CPU_KV_POOL_BYTES: Final = 2 << 30


class SettingsError(ValueError):
    """A setting has a value that cannot be used; the message names it, the value and the remedy."""


class OnUnsupported(Enum):
    """What to do with a model or feature that SmartGen's transfer does not support."""

    REFUSE = "refuse"
    FULL = "full"


class Protocol(Enum):
    """How Mooncake moves bytes. AUTO takes RDMA where a device exists, else TCP."""

    AUTO = "auto"
    RDMA = "rdma"
    TCP = "tcp"


def flag(default: Any, help_text: str) -> Any:
    """A dataclass field whose help text becomes the flag's help and the README row."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything a user can set with `--smartgen-*`."""

    mode: Mode = flag(
        Mode.LAYERWISE,
        "How a prompt's KV cache travels to the decode server: 'layerwise' sends each layer as "
        "soon as it is computed, 'full' sends whole chunks as stock SGLang does.",
    )
    on_unsupported: OnUnsupported = flag(
        OnUnsupported.REFUSE,
        "A model or feature that layer-wise transfer does not support: 'refuse' to start, or "
        "serve it by 'full' transfer.",
    )
    protocol: Protocol = flag(
        Protocol.AUTO,
        "Transport of the KV cache: 'auto' takes RDMA where this machine has a device, else TCP.",
    )
    write_deadline_s: float = flag(
        15.0,
        "Seconds that one write to the decode server may take before its request fails.",
    )
    statistics: bool = flag(
        False,
        "Prefill only: score each block of a prompt's KV by what the prompt's last queries attend "
        "to. Off until a transfer mode uses the scores; a request may switch it off for itself.",
    )
    debug: bool = flag(
        False,
        "Check every state table after each step, and put checksums of the KV that each server "
        "holds, and the statistics, into the responses.",
    )

    def __post_init__(self) -> None:
        if self.mode is Mode.SELECTIVE:
            raise SettingsError(
                "--smartgen-mode selective is not available in this version; use 'layerwise' or 'full'"
            )
        if not 1.0 <= self.write_deadline_s <= 600.0:
            raise SettingsError(
                f"--smartgen-write-deadline-s {self.write_deadline_s} is outside 1..600 seconds"
            )
