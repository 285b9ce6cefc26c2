"""Which compiled instruction set runs: chosen once at import, or named per call by tests."""

from __future__ import annotations

import os
from typing import Any

from smartgen_kernel import _C

_FORCED = os.environ.get("SMARTGEN_KERNEL_ISA", "")
_DEFAULT = _C.kernels(_FORCED)
_BY_NAME = {name: _C.kernels(name) for name in _C.available()}


def isa() -> str:
    """Name of the instruction set used by default: avx512bf16, avx512, avx2 or portable."""
    return _DEFAULT.isa


def available_isas() -> tuple[str, ...]:
    """Names that ``isa=`` and ``SMARTGEN_KERNEL_ISA`` accept on this machine, fastest first."""
    return tuple(_BY_NAME)


def kernels(name: str | None) -> Any:
    """Kernel table of the named set; ``None`` is the default one.  Raises ValueError for a name not available."""
    if name is None:
        return _DEFAULT
    return _BY_NAME.get(name) or _C.kernels(name)
