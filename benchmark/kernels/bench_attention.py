"""Paged attention: smartgen_kernel beside SGLang's torch_native way and the best route ATen offers.

Shapes are those of one layer of a 135M Llama (9 query heads, 3 KV heads, head size 64, bf16, pages of 16).
Decode cases walk over 30 layers, so that K and V come from memory as they do in a real step; "warm" repeats one
layer. Times are CPU time of the calling thread, which a busy neighbour disturbs less than wall time. Outputs are
checked against the reference before anything is timed.

    python benchmark/kernels/bench_attention.py [--isa avx2] [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import smartgen_kernel
import torch
import torch.nn.functional as F
from smartgen.ops import TOLERANCES, reference
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from harness import Bench

HEADS, KV_HEADS, HEAD_SIZE, PAGE_SIZE, LAYERS = 9, 3, 64, 16, 30
SCALE = HEAD_SIZE**-0.5


@dataclass(frozen=True)
class Layer:
    """One request's keys and values, in scattered pages of a pool twice their size."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    req_to_token: Tensor
    prefix: int
    length: int

    @classmethod
    def random(cls, prefix: int, length: int) -> Layer:
        pages = -(-length // PAGE_SIZE)
        slots = (
            torch.randperm(2 * pages)[:pages, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)
        ).flatten()
        pools = (
            torch.randn(2 * pages * PAGE_SIZE, KV_HEADS, HEAD_SIZE).bfloat16() for _ in range(2)
        )
        q = torch.randn(length - prefix, HEADS, HEAD_SIZE).bfloat16()
        return cls(q, *pools, slots[None].int(), prefix, length)

    def arguments(self, extend: bool) -> tuple[Tensor, ...]:
        prefix = (torch.tensor([self.prefix]),) if extend else ()
        return (
            self.q,
            self.k_cache,
            self.v_cache,
            self.req_to_token,
            torch.tensor([0]),
            *prefix,
            torch.tensor([self.length]),
        )

    def gathered(self) -> tuple[Tensor, Tensor]:
        slots = self.req_to_token[0, : self.length]
        return self.k_cache[slots].movedim(0, 1)[None], self.v_cache[slots].movedim(0, 1)[None]

    def torch_native(self) -> Tensor:
        """As SGLang's torch_native backend: a query row for every position, prefix rows thrown away."""
        keys, values = self.gathered()
        rows = (
            torch.empty(HEADS, self.length, HEAD_SIZE, dtype=self.q.dtype)
            if self.q.shape[0] > 1
            else self.q.movedim(0, 1)
        )
        if self.q.shape[0] > 1:
            rows[:, self.prefix :] = self.q.movedim(0, 1)
        causal = self.q.shape[0] > 1
        out = F.scaled_dot_product_attention(
            rows[None], keys, values, enable_gqa=True, scale=SCALE, is_causal=causal
        )
        return out[0].movedim(1, 0)[-self.q.shape[0] :]

    def aten(self) -> Tensor:
        """The fastest ATen form known: fresh rows only; for one query, the group folded into rows."""
        keys, values = self.gathered()
        if self.q.shape[0] == 1:
            rows = self.q.view(1, KV_HEADS, HEADS // KV_HEADS, HEAD_SIZE)
            return F.scaled_dot_product_attention(rows, keys, values, scale=SCALE).view(
                1, HEADS, HEAD_SIZE
            )
        rows = self.q.movedim(0, 1)[None]
        if self.prefix == 0:
            out = F.scaled_dot_product_attention(
                rows, keys, values, enable_gqa=True, scale=SCALE, is_causal=True
            )
        else:
            mask = torch.ones(self.q.shape[0], self.length, dtype=torch.bool).tril_(self.prefix)
            out = F.scaled_dot_product_attention(
                rows, keys, values, enable_gqa=True, scale=SCALE, attn_mask=mask
            )
        return out[0].movedim(1, 0)


def kernel(layer: Layer, isa: str | None) -> Callable[[], tuple[Tensor, Tensor]]:
    extend = layer.q.shape[0] > 1
    function = smartgen_kernel.extend_attention if extend else smartgen_kernel.decode_attention
    arguments = layer.arguments(extend)
    return lambda: function(*arguments, page_size=PAGE_SIZE, scale=SCALE, num_threads=1, isa=isa)


def check(layer: Layer, isa: str | None) -> None:
    extend = layer.q.shape[0] > 1
    plain = reference.extend_attention if extend else reference.decode_attention
    expected, expected_lse2 = plain(*layer.arguments(extend), page_size=PAGE_SIZE, scale=SCALE)
    bound = TOLERANCES["attention"][torch.bfloat16]
    out, lse2 = kernel(layer, isa)()
    torch.testing.assert_close(lse2, expected_lse2, rtol=0, atol=bound.lse2)
    for got in (out, layer.torch_native(), layer.aten()):
        torch.testing.assert_close(got, expected, rtol=bound.relative, atol=bound.absolute)


def main() -> None:
    bench = Bench.from_command_line(__doc__)
    for prefix, length in ((0, 2048), (0, 4096), (3584, 4096)):
        layer = Layer.random(prefix, length)
        check(layer, bench.isa)
        operations = 4 * HEADS * HEAD_SIZE * (length * (length + 1) - prefix * (prefix + 1)) / 2
        bench.compare(
            f"extend {length - prefix} after {prefix}",
            ours=[kernel(layer, bench.isa)],
            torch_native=[layer.torch_native],
            aten=[layer.aten],
            operations=operations,
        )
    for length in (2048, 6000):
        layers = [Layer.random(length - 1, length) for _ in range(LAYERS)]
        check(layers[0], bench.isa)
        for name, chosen in (("cold", layers), ("warm", layers[:1] * LAYERS)):
            bench.compare(
                f"decode over {length}, {name}",
                ours=[kernel(layer, bench.isa) for layer in chosen],
                torch_native=[layer.torch_native for layer in chosen],
                aten=[layer.aten for layer in chosen],
                bytes_read=4 * length * KV_HEADS * HEAD_SIZE,
            )


if __name__ == "__main__":
    main()
