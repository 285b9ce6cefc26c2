"""Selecting blocks: smartgen_kernel beside compositions of torch, and beside what the machine can do.

Shapes are those of one layer of a 135M Llama (9 query heads, 3 KV heads, head size 64, bf16, pages of 16, blocks of
32). "gemm" is ATen's product of the same shape alone, "stream" reads as many bytes as there are to read; both are
bounds that no route can beat by much. Cases walk over 30 layers, so that keys and digests come from memory. Times are
CPU time of the calling thread. Outputs are checked against the reference before anything is timed.

    python benchmark/kernels/bench_selection.py [--isa avx2] [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import smartgen_kernel as ours
import torch
from smartgen.ops import TOLERANCES, reference
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from harness import Bench

HEADS, KV_HEADS, HEAD_SIZE, PAGE_SIZE, BLOCK_SIZE, LAYERS = 9, 3, 64, 16, 32, 30
GROUP = HEADS // KV_HEADS
SCALE = HEAD_SIZE**-0.5
BLOCKS = {"block_size": BLOCK_SIZE, "page_size": PAGE_SIZE}
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Layer:
    """Keys of one request in scattered pages of a pool twice their size, and queries at its end."""

    q: Tensor
    k_cache: Tensor
    slots: Tensor
    length: int

    @classmethod
    def random(cls, queries: int, length: int) -> Layer:
        pages = -(-length // PAGE_SIZE)
        chosen = torch.randperm(2 * pages)[:pages, None]
        slots = (chosen * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten().int()
        q = torch.randn(queries, HEADS, HEAD_SIZE).to(BF16)
        pool = torch.randn(2 * pages * PAGE_SIZE, KV_HEADS, HEAD_SIZE).to(BF16)
        return cls(q, pool, slots, length)

    @property
    def key_bytes(self) -> int:
        return 2 * self.length * KV_HEADS * HEAD_SIZE

    def keys(self) -> Tensor:
        return self.k_cache[self.slots[: self.length]]

    def extend(self, isa: str | None) -> tuple[Tensor, Tensor]:
        """Attention of the queries; the keys serve as values too."""
        first = torch.tensor([self.length - self.q.shape[0]])
        return ours.extend_attention(
            self.q, self.k_cache, self.k_cache, self.slots[None], torch.tensor([0]), first, torch.tensor([self.length]),
            page_size=PAGE_SIZE, scale=SCALE, num_threads=1, isa=isa,
        )  # fmt: skip


def by_kv_head(q: Tensor) -> Tensor:
    """[kv_heads, queries * group, head_size]"""
    return q.unflatten(1, (KV_HEADS, GROUP)).movedim(1, 0).flatten(1, 2)


def torch_mass(layer: Layer, lse2: Tensor, positions: Tensor) -> Tensor:
    """One batched product, then in place; only the last blocks are masked."""
    keys = layer.keys().movedim(1, 0)
    logits = torch.bmm(by_kv_head(layer.q), keys.transpose(1, 2)).float()
    logits = logits.unflatten(1, (-1, GROUP)).movedim(0, 1).flatten(1, 2)
    shares = logits.mul_(SCALE * math.log2(math.e)).sub_(lse2[..., None]).exp2_()
    first = int(positions.min())
    unseen = torch.arange(first, layer.length) > positions[:, None]
    shares[..., first:].masked_fill_(unseen[:, None], 0.0)
    rest = -layer.length % BLOCK_SIZE
    return torch.nn.functional.pad(shares, (0, rest)).unflatten(-1, (-1, BLOCK_SIZE)).sum(-1)


def torch_digest(layer: Layer, sub_tokens: int) -> Tensor:
    whole = layer.length // sub_tokens * sub_tokens
    keys = layer.k_cache[layer.slots[:whole]].unflatten(0, (-1, sub_tokens))
    return keys.mean(dim=1, dtype=torch.float32).to(BF16)


def torch_bounds(layer: Layer) -> tuple[Tensor, Tensor]:
    whole = layer.length // BLOCK_SIZE * BLOCK_SIZE
    return layer.k_cache[layer.slots[:whole]].unflatten(0, (-1, BLOCK_SIZE)).aminmax(dim=1)


def torch_scores(q: Tensor, digest: Tensor, block_size: int) -> Tensor:
    """All blocks full."""
    blocks, subs = digest.shape[:2]
    flat = digest.flatten(0, 1).movedim(1, 0)
    logits = torch.bmm(by_kv_head(q), flat.transpose(1, 2)).float()
    logits = logits.unflatten(1, (-1, GROUP)).movedim(0, 1).flatten(1, 2)
    logits = logits.unflatten(-1, (blocks, subs)) * SCALE
    return torch.logsumexp(logits, dim=-1) / math.log(2) + math.log2(block_size // subs)


def torch_bound_scores(q: Tensor, bounds: Tensor, block_size: int) -> Tensor:
    rows = torch.cat((q.clamp(max=0), q.clamp(min=0)), dim=-1)
    both = bounds.movedim(1, 2).flatten(2)  # minimum and maximum side by side
    logits = torch.bmm(by_kv_head(rows), both.movedim(1, 0).transpose(1, 2)).float()
    logits = logits.unflatten(1, (-1, GROUP)).movedim(0, 1).flatten(1, 2)
    return logits * (SCALE * math.log2(math.e)) + math.log2(block_size)


def close(got: Tensor, expected: Tensor, operator: str) -> None:
    bound = TOLERANCES[operator][BF16]
    absolute = bound.lse2 or bound.absolute
    torch.testing.assert_close(got, expected, rtol=bound.relative, atol=absolute)


def stream(*tensors: Tensor) -> Callable[[], object]:
    """Reads every byte of the tensors, in the way that was found fastest here."""
    words = [t.flatten().view(torch.float32) for t in tensors]
    return lambda: [w.sum() for w in words]


def mass(bench: Bench, queries: int, length: int) -> None:
    named = {"isa": bench.isa, "num_threads": 1}
    layers = [Layer.random(queries, length) for _ in range(LAYERS)]
    positions = torch.arange(length - queries, length)
    lse2 = [layer.extend(bench.isa)[1] for layer in layers]

    def run(layer: Layer, known: Tensor) -> Tensor:
        return ours.block_mass(
            layer.q, known, positions, layer.k_cache, layer.slots, length, **BLOCKS, scale=SCALE, **named
        )  # fmt: skip

    first = layers[0]
    close(
        run(first, lse2[0]),
        reference.block_mass(
            first.q, lse2[0], positions, first.k_cache, first.slots, length, **BLOCKS, scale=SCALE
        ),
        "block_mass",
    )
    dense = [(by_kv_head(layer.q), layer.keys().movedim(1, 0).contiguous()) for layer in layers]
    bench.compare(
        f"block_mass, {queries} queries over {length} keys",
        ours=[partial(run, layer, known) for layer, known in zip(layers, lse2, strict=True)],
        torch=[
            partial(torch_mass, layer, known, positions)
            for layer, known in zip(layers, lse2, strict=True)
        ],
        gemm=[partial(torch.bmm, rows, keys.transpose(1, 2)) for rows, keys in dense],
        operations=2 * queries * HEADS * HEAD_SIZE * length,
    )


def beside_attention(bench: Bench) -> None:
    """The same request's last chunk of 2,000 tokens: attention, products of the layer, selection."""
    length, chunk, queries, width, inner = 6000, 2000, 32, 576, 1536
    layer = Layer.random(chunk, length)
    _, lse2 = layer.extend(bench.isa)
    last, lse2 = layer.q[-queries:], lse2[-queries:].contiguous()
    positions = torch.arange(length - queries, length)
    x = torch.randn(chunk, width).to(BF16)
    wide = torch.randn(chunk, inner).to(BF16)
    weights = [
        torch.randn(features, width).to(BF16) for features in (width + 384, width, 2 * inner)
    ]
    down = torch.randn(width, inner).to(BF16)

    def products() -> None:
        for weight in weights:
            torch.nn.functional.linear(x, weight)
        torch.nn.functional.linear(wide, down)

    bench.compare(
        f"one layer of a {chunk}-token chunk that ends at {length}",
        block_mass=[
            lambda: ours.block_mass(
                last, lse2, positions, layer.k_cache, layer.slots, length, **BLOCKS, scale=SCALE, isa=bench.isa,
                num_threads=1,
            )
        ] * 10,
        block_digest=[
            lambda: ours.block_digest(
                layer.k_cache, layer.slots, length, **BLOCKS, sub_tokens=8, isa=bench.isa, num_threads=1
            )
        ] * 10,
        attention=[lambda: layer.extend(bench.isa)],
        products=[products],
    )  # fmt: skip


def folds(bench: Bench, length: int) -> None:
    named = {"isa": bench.isa, "num_threads": 1}
    layers = [Layer.random(1, length) for _ in range(LAYERS)]
    first = layers[0]
    whole = [stream(layer.keys()) for layer in layers]
    for sub_tokens in (4, 8, 32):
        digest = partial(ours.block_digest, **BLOCKS, sub_tokens=sub_tokens, **named)
        arguments = (first.k_cache, first.slots, length)
        close(
            digest(*arguments),
            reference.block_digest(*arguments, **BLOCKS, sub_tokens=sub_tokens),
            "block_digest",
        )
        bench.compare(
            f"block_digest of {length} keys by {sub_tokens}",
            ours=[partial(digest, layer.k_cache, layer.slots, length) for layer in layers],
            torch=[partial(torch_digest, layer, sub_tokens) for layer in layers],
            stream=whole,
            bytes_read=first.key_bytes,
        )
    digests = [
        ours.block_digest(layer.k_cache, layer.slots, length, **BLOCKS, sub_tokens=8)
        for layer in layers
    ]
    packed = [reference.quantize_digest(digest) for digest in digests]
    bench.compare(
        f"8-bit digest of {length} keys by 8",
        quantize=[partial(reference.quantize_digest, digest) for digest in digests],
        dequantize=[partial(reference.dequantize_digest, *pair, BF16) for pair in packed],
    )
    bounds = partial(ours.block_bounds, **BLOCKS, **named)
    arguments = (first.k_cache, first.slots, length)
    close(bounds(*arguments), reference.block_bounds(*arguments, **BLOCKS), "block_bounds")
    bench.compare(
        f"block_bounds of {length} keys",
        ours=[partial(bounds, layer.k_cache, layer.slots, length) for layer in layers],
        torch=[partial(torch_bounds, layer) for layer in layers],
        stream=whole,
        bytes_read=first.key_bytes,
    )


def scores(bench: Bench, blocks: int) -> None:
    named = {"isa": bench.isa, "num_threads": 1}
    length, same = blocks * BLOCK_SIZE, {"block_size": BLOCK_SIZE, "scale": SCALE}
    for rows, subs in ((1, 1), (1, 4), (1, 8), (8, 8)):
        q = torch.randn(rows, HEADS, HEAD_SIZE).to(BF16)
        digests = [torch.randn(blocks, subs, KV_HEADS, HEAD_SIZE).to(BF16) for _ in range(LAYERS)]
        expected = reference.digest_scores(q, digests[0], length, **same)
        score = partial(ours.digest_scores, q, **same, **named)
        close(score(digests[0], length), expected, "block_scores")
        bench.compare(
            f"digest_scores, {rows} rows, {blocks} blocks of {subs}",
            ours=[partial(score, digest, length) for digest in digests],
            torch=[partial(torch_scores, q, digest, BLOCK_SIZE) for digest in digests],
            stream=[stream(digest) for digest in digests],
            bytes_read=digests[0].nbytes,
        )
    q = torch.randn(1, HEADS, HEAD_SIZE).to(BF16)
    all_bounds = [torch.randn(blocks, 2, KV_HEADS, HEAD_SIZE).to(BF16) for _ in range(LAYERS)]
    bound = partial(ours.bound_scores, q, **same, **named)
    close(
        bound(all_bounds[0], length),
        reference.bound_scores(q, all_bounds[0], length, **same),
        "block_scores",
    )
    bench.compare(
        f"bound_scores, 1 row, {blocks} blocks",
        ours=[partial(bound, bounds, length) for bounds in all_bounds],
        torch=[partial(torch_bound_scores, q, bounds, BLOCK_SIZE) for bounds in all_bounds],
        stream=[stream(bounds) for bounds in all_bounds],
        bytes_read=all_bounds[0].nbytes,
    )


def partial_attention(bench: Bench, length: int) -> None:
    """Half of a request's pages in random order, beside decode over as many consecutive ones."""
    named = {"page_size": PAGE_SIZE, "scale": SCALE, "isa": bench.isa, "num_threads": 1}
    layers = [Layer.random(1, length) for _ in range(LAYERS)]
    half = length // 2 // PAGE_SIZE
    counts, lengths = torch.tensor([half]), torch.tensor([half * PAGE_SIZE])
    lists = [
        layer.slots[:: PAGE_SIZE][torch.randperm(length // PAGE_SIZE)[:half]][None]
        for layer in layers
    ]  # fmt: skip
    arguments = [
        (layer.q, layer.k_cache, layer.k_cache, pages, counts, lengths)
        for layer, pages in zip(layers, lists, strict=True)
    ]
    expected = reference.partial_attention(*arguments[0], page_size=PAGE_SIZE, scale=SCALE)
    close(ours.partial_attention(*arguments[0], **named)[0], expected[0], "attention")
    zero = torch.tensor([0])
    bench.compare(
        f"partial_attention over {half} of {length // PAGE_SIZE} pages",
        ours=[partial(ours.partial_attention, *given, **named) for given in arguments],
        decode=[
            partial(
                ours.decode_attention, layer.q, layer.k_cache, layer.k_cache, layer.slots[None], zero, lengths, **named
            )
            for layer in layers
        ],
    )  # fmt: skip


def main() -> None:
    bench = Bench.from_command_line(__doc__)
    for queries, length in ((32, 6000), (16, 6000), (32, 2000)):
        mass(bench, queries, length)
    beside_attention(bench)
    folds(bench, 6000)
    scores(bench, 512)
    partial_attention(bench, 6000)


if __name__ == "__main__":
    main()
