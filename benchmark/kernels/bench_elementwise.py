"""Norms, activation, rotary embedding and few-row products: smartgen_kernel beside plain torch (ATen).

"aten" is what SGLang's forward_native executes; for linear it is F.linear. Widths are those of a 135M Llama.
Weights of the linear cases rotate over 200 MB, so that they come from memory as in a real decode step. Outputs
are checked before anything is timed.

    python benchmark/kernels/bench_elementwise.py [--isa avx2] [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import smartgen_kernel as ours
import torch
import torch.nn.functional as F
from smartgen.ops import TOLERANCES, reference

sys.path.insert(0, str(Path(__file__).parent))
from harness import Bench

WIDTH, INNER, HEAD_SIZE = 576, 1536, 64
LINEAR = ((576, 576), (960, 576), (3072, 576), (576, 1536), (49152, 576))
CALLS = 50


def check(got: torch.Tensor, expected: torch.Tensor, operator: str) -> None:
    bound = TOLERANCES[operator][got.dtype]
    torch.testing.assert_close(got, expected, rtol=bound.relative, atol=bound.absolute)


def layer_helpers(bench: Bench, tokens: int) -> None:
    x, residual = torch.randn(tokens, WIDTH).bfloat16(), torch.randn(tokens, WIDTH).bfloat16()
    weight, gated = torch.randn(WIDTH).bfloat16(), torch.randn(tokens, 2 * INNER).bfloat16()
    qkv, cache = torch.randn(tokens, 15 * HEAD_SIZE).bfloat16(), torch.rand(8192, HEAD_SIZE)
    q, k, positions = (
        qkv[:, : 9 * HEAD_SIZE],
        qkv[:, 9 * HEAD_SIZE : 12 * HEAD_SIZE],
        torch.arange(tokens),
    )
    named = {"isa": bench.isa, "num_threads": 1}
    check(ours.rmsnorm(x, weight, 1e-5, **named), reference.rmsnorm(x, weight, 1e-5), "rmsnorm")
    check(ours.silu_and_mul(gated, **named), reference.silu_and_mul(gated), "silu_and_mul")
    bench.compare(
        f"rmsnorm, {tokens} tokens",
        ours=[lambda: ours.rmsnorm(x, weight, 1e-5, **named)] * CALLS,
        aten=[lambda: reference.rmsnorm(x, weight, 1e-5)] * CALLS,
    )
    bench.compare(
        f"fused_add_rmsnorm, {tokens} tokens",
        ours=[lambda: ours.fused_add_rmsnorm(x, residual, weight, 1e-5, **named)] * CALLS,
        aten=[lambda: reference.fused_add_rmsnorm(x, residual, weight, 1e-5)] * CALLS,
    )
    bench.compare(
        f"silu_and_mul, {tokens} tokens",
        ours=[lambda: ours.silu_and_mul(gated, **named)] * CALLS,
        aten=[lambda: reference.silu_and_mul(gated)] * CALLS,
    )
    bench.compare(
        f"rotary_embedding, {tokens} tokens",
        ours=[lambda: ours.rotary_embedding(positions, q, k, cache, HEAD_SIZE, **named)] * CALLS,
        aten=[lambda: reference.rotary_embedding(positions, q, k, cache, HEAD_SIZE)] * CALLS,
    )


def few_row_products(bench: Bench, features: int, width: int) -> None:
    weights = [
        torch.randn(features, width).bfloat16()
        for _ in range(max(1, min(120, 100_000_000 // (features * width))))
    ]
    for rows in (1, 2, 4, 8):
        x = torch.randn(rows, width).bfloat16()
        check(ours.linear(x, weights[0], isa=bench.isa), reference.linear(x, weights[0]), "linear")
        bench.compare(
            f"linear {features} x {width}, {rows} rows",
            ours=[
                lambda w=w, x=x: ours.linear(x, w, num_threads=1, isa=bench.isa) for w in weights
            ],
            aten=[lambda w=w, x=x: F.linear(x, w) for w in weights],
            bytes_read=2 * features * width,
        )


def main() -> None:
    bench = Bench.from_command_line(__doc__)
    for tokens in (1, 8, 2048):
        layer_helpers(bench, tokens)
    for features, width in LINEAR:
        few_row_products(bench, features, width)


if __name__ == "__main__":
    main()
