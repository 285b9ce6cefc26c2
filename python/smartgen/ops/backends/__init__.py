"""Choice of the implementation behind `smartgen.ops`.

A backend is a module with the functions of `smartgen.ops.reference`. Asking for one by name and not getting it
is an error; "auto" takes the fastest that loads and logs that choice once.
"""

import importlib
import logging
from functools import cache
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor

__all__ = ["FEW_ROWS", "Backend", "backend"]

# Up to so many rows (a decode step's batch) a product streams the weights once, faster than a GEMM.
FEW_ROWS: Final = 8
_MODULES: Final = {"cpu": "smartgen.ops.backends.cpu", "reference": "smartgen.ops.reference"}
_log = logging.getLogger(__name__)


class Backend(Protocol):
    """The operators every backend has; shapes and rounding are said in `smartgen.ops.reference`."""

    def extend_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        req_to_token: Tensor,
        rows: Tensor,
        prefix_lens: Tensor,
        seq_lens: Tensor,
        *,
        page_size: int,
        scale: float,
        out: Tensor | None = None,
        lse2: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        req_to_token: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        *,
        page_size: int,
        scale: float,
        out: Tensor | None = None,
        lse2: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def partial_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        pages: Tensor,
        page_counts: Tensor,
        lengths: Tensor,
        *,
        page_size: int,
        scale: float,
        out: Tensor | None = None,
        lse2: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def merge(
        self, out_a: Tensor, lse2_a: Tensor, out_b: Tensor, lse2_b: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def block_mass(
        self,
        q: Tensor,
        lse2: Tensor,
        positions: Tensor,
        k_cache: Tensor,
        slots: Tensor,
        length: int,
        *,
        block_size: int,
        page_size: int,
        scale: float,
    ) -> Tensor: ...

    def block_digest(
        self,
        k_cache: Tensor,
        slots: Tensor,
        length: int,
        *,
        block_size: int,
        page_size: int,
        sub_tokens: int,
    ) -> Tensor: ...

    def block_bounds(
        self, k_cache: Tensor, slots: Tensor, length: int, *, block_size: int, page_size: int
    ) -> Tensor: ...

    def quantize_digest(self, digest: Tensor) -> tuple[Tensor, Tensor]: ...

    def dequantize_digest(self, values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor: ...

    def digest_scores(
        self, q: Tensor, digest: Tensor, length: int, *, block_size: int, scale: float
    ) -> Tensor: ...

    def bound_scores(
        self, q: Tensor, bounds: Tensor, length: int, *, block_size: int, scale: float
    ) -> Tensor: ...

    def rmsnorm(
        self, x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None
    ) -> Tensor: ...

    def fused_add_rmsnorm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> None: ...

    def silu_and_mul(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...

    def rotary_embedding(
        self,
        positions: Tensor,
        q: Tensor,
        k: Tensor,
        cos_sin_cache: Tensor,
        head_size: int,
        *,
        neox: bool = True,
    ) -> None: ...

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor: ...


@cache
def backend(name: str = "auto") -> Backend:
    """The backend of that name: "cpu" (needs smartgen_kernel), "reference", or "auto".

    Raises ValueError for an unknown name and ImportError for one that cannot be loaded here.
    """
    if name == "auto":
        return _first_that_loads()
    if name not in _MODULES:
        raise ValueError(f"backend: got {name!r}, expected one of auto, {', '.join(_MODULES)}")
    return cast(Backend, _load(name))


def _first_that_loads() -> Backend:
    for name in _MODULES:
        try:
            chosen = _load(name)
        except ImportError as error:
            # Correct all the same, and far slower: that must not pass unseen.
            _log.warning("operators: backend %s is not available (%s)", name, error)
            continue
        _log.info("operators: using backend %s", name)
        return cast(Backend, chosen)
    raise ImportError("no operator backend can be loaded")


def _load(name: str) -> Any:
    return importlib.import_module(_MODULES[name])
