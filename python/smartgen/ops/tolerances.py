"""How far any backend may be from the reference: the one table that tests, benchmarks and docs use.

`out` bounds results in the element type: |got - expected| <= absolute + relative * |expected|.
bfloat16 keeps 8 significant bits, so values that round apart differ by up to 2^-7; attention also
rounds its probabilities to it. `lse2` is an absolute bound on the base-2 log-sum-exp, which is
float32 in both element types, and on scores of blocks. Operators that only copy, compare or rotate are exact.
"""

from dataclasses import dataclass
from typing import Final

import torch

_BF16_STEP: Final = 2.0**-7  # neighbouring bfloat16 values differ by at most this, relative


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Bounds for one operator and element type."""

    relative: float
    absolute: float
    lse2: float = 0.0


TOLERANCES: Final[dict[str, dict[torch.dtype, Tolerance]]] = {
    "attention": {
        torch.bfloat16: Tolerance(relative=_BF16_STEP, absolute=8e-3, lse2=1e-4),
        torch.float32: Tolerance(relative=1e-5, absolute=1e-5, lse2=2e-5),
    },
    "block_mass": {
        torch.bfloat16: Tolerance(relative=1e-4, absolute=1e-6),
        torch.float32: Tolerance(relative=5e-5, absolute=1e-6),
    },
    "block_digest": {
        torch.bfloat16: Tolerance(relative=_BF16_STEP, absolute=1e-6),
        torch.float32: Tolerance(relative=2e-6, absolute=1e-6),
    },
    "block_bounds": {
        torch.bfloat16: Tolerance(relative=0.0, absolute=0.0),
        torch.float32: Tolerance(relative=0.0, absolute=0.0),
    },
    "block_scores": {
        torch.bfloat16: Tolerance(relative=0.0, absolute=0.0, lse2=1e-4),
        torch.float32: Tolerance(relative=0.0, absolute=0.0, lse2=5e-5),
    },
    "merge": {
        torch.bfloat16: Tolerance(relative=_BF16_STEP, absolute=1e-5, lse2=1e-5),
        torch.float32: Tolerance(relative=1e-5, absolute=1e-6, lse2=1e-5),
    },
    "rmsnorm": {
        torch.bfloat16: Tolerance(relative=_BF16_STEP, absolute=1e-6),
        torch.float32: Tolerance(relative=2e-6, absolute=1e-6),
    },
    "silu_and_mul": {
        torch.bfloat16: Tolerance(relative=2 * _BF16_STEP, absolute=1e-6),
        torch.float32: Tolerance(relative=2e-6, absolute=1e-6),
    },
    "rotary_embedding": {
        torch.bfloat16: Tolerance(relative=0.0, absolute=0.0),
        torch.float32: Tolerance(relative=0.0, absolute=0.0),
    },
    "linear": {
        torch.bfloat16: Tolerance(relative=_BF16_STEP, absolute=1e-2),
        torch.float32: Tolerance(relative=1e-5, absolute=1e-4),
    },
}
