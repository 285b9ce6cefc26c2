"""CPU backend: smartgen_kernel where it wins, ATen where that does not lose.

Figures are medians of benchmark/kernels on one Zen 4 core, bf16, against ATen's best route; on that
core ATen never won for few rows. Attention: prefill of 2,048 tokens 28 against 85 ms, 512 tokens
after 3,584 25 against 84 ms, one decode query over 2,048 cold tokens 0.16-0.22 against 1.0 ms.
Layer helpers at one token: 3-5 us against 6-51 us, mostly calls saved. Few-row linear, weights from
memory, at 1 / 8 rows: 576 x 576 50 / 63 against 150 / 170 us, 49152 x 576 3.4 / 3.9 against
7.5 / 9.7 ms (17 GB/s of the 21 that plain streaming reaches, against 7).
Selection (bench_selection): block_mass of 32 queries over 6,000 cold keys 1.7 ms, as long as ATen's product
alone (1.6) and below 1 % of a layer's 2,000-token chunk (199 ms); digests and bounds of those keys 0.17-0.19
against 1.1-4.0 ms; scores of 512 blocks x 8 sub-blocks 0.10 against 1.2 ms (reading alone: 0.08).
`merge` stays in torch: one row per query, nothing beside the attention it joins. So do the 8-bit digests:
once per request and layer, 0.16 ms to make and 0.07 ms to read for 6,000 keys (bench_selection).
"""

import torch.nn.functional as F
from smartgen_kernel import (
    block_bounds,
    block_digest,
    block_mass,
    bound_scores,
    decode_attention,
    digest_scores,
    extend_attention,
    fused_add_rmsnorm,
    partial_attention,
    rmsnorm,
    rotary_embedding,
    silu_and_mul,
)
from smartgen_kernel import linear as _few_rows
from torch import Tensor

from smartgen.ops.backends import FEW_ROWS
from smartgen.ops.reference import dequantize_digest, merge, quantize_digest

__all__ = [
    "block_bounds",
    "block_digest",
    "block_mass",
    "bound_scores",
    "decode_attention",
    "dequantize_digest",
    "digest_scores",
    "extend_attention",
    "fused_add_rmsnorm",
    "linear",
    "merge",
    "partial_attention",
    "quantize_digest",
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
