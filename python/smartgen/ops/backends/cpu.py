"""CPU backend: smartgen_kernel where it wins, ATen where that does not lose.

Figures are medians of benchmark/kernels on one Zen 4 core, bf16, against ATen's best route; on that
core ATen never won for few rows. Attention: prefill of 2,048 tokens 28 against 85 ms, 512 tokens
after 3,584 25 against 84 ms, one decode query over 2,048 cold tokens 0.16-0.22 against 1.0 ms.
Layer helpers at one token: 3-5 us against 6-51 us, mostly calls saved. Few-row linear, weights from
memory, at 1 / 8 rows: 576 x 576 50 / 63 against 150 / 170 us, 49152 x 576 3.4 / 3.9 against
7.5 / 9.7 ms (17 GB/s of the 21 that plain streaming reaches, against 7).
`merge` stays in torch: one row per query, nothing beside the attention it joins.
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

from smartgen.ops.backends import FEW_ROWS
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


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """`x @ weight.T + bias`: the streaming kernel for a decode step's few rows, ATen's GEMM for more."""
    if x.shape[0] <= FEW_ROWS:
        return _few_rows(x, weight, bias, out)
    result = F.linear(x, weight, bias)
    return result if out is None else out.copy_(result)
