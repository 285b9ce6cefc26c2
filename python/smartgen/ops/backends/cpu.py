"""CPU backend: smartgen_kernel where it wins, ATen where that does not lose.

`merge` stays in torch: it touches one row per query, and its cost vanishes beside the attention it joins.
"""

import torch.nn.functional as F
from smartgen_kernel import (
    decode_attention,
    extend_attention,
    fused_add_rmsnorm,
    rmsnorm,
    rotary_embedding,
    silu_and_mul,
)
from smartgen_kernel import linear as _few_rows
from torch import Tensor

from smartgen.ops.reference import merge

__all__ = [
    "decode_attention",
    "extend_attention",
    "fused_add_rmsnorm",
    "linear",
    "merge",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
]

_FEW_ROWS = 8


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`: the streaming kernel for a decode step's few rows, ATen's GEMM for more."""
    if x.shape[0] <= _FEW_ROWS:
        return _few_rows(x, weight, bias, out)
    result = F.linear(x, weight, bias)
    return result if out is None else out.copy_(result)
