"""Wrong arguments of the selection kernels are refused by name, value and expectation."""

import re

import pytest
import smartgen_kernel
import torch

BF16 = torch.bfloat16


def changed(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


def mass_arguments(batch):
    return {
        "q": batch.q, "lse2": torch.zeros(10, 9), "positions": torch.arange(30, 40), "k_cache": batch.k_cache,
        "slots": batch.slots, "length": 40, "block_size": 32, "page_size": 16, "scale": 0.125,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda b: b.q.half(), "q.dtype: got torch.float16, expected torch.bfloat16 or torch.float32"),
        ("q", lambda b: b.q.float(), "k_cache.dtype: got torch.bfloat16, expected torch.float32"),
        ("q", lambda b: b.q[..., :56], "q.shape[2]: got 56, expected a positive multiple of 16"),
        ("q", lambda b: b.q[..., :48], "k_cache.shape: got (112, 3, 64), expected [slots, kv_heads, 48]"),
        ("q", lambda b: b.q[:, :8], "lse2.shape: got (10, 9), expected (10, 8)"),
        ("lse2", lambda b: torch.zeros(10, 9, dtype=BF16), "lse2.dtype: got torch.bfloat16, expected torch.float32"),
        ("lse2", lambda b: torch.zeros(9, 10).T, "lse2.stride: got (1, 10), expected a contiguous tensor"),
        ("positions", lambda b: torch.arange(11), "positions.shape: got (11,), expected (10,)"),
        ("positions", lambda b: torch.zeros(10), "positions.dtype: got torch.float32, expected torch.int32 or"),
        ("k_cache", lambda b: b.k_cache[:, :2].contiguous(), "q.shape[1]: got 9, expected a positive multiple of"),
        ("k_cache", lambda b: b.k_cache[:, 0], "k_cache.shape: got (112, 64), expected [slots, kv_heads, head_size]"),
        ("slots", lambda b: b.slots.long(), "slots.dtype: got torch.int64, expected torch.int32"),
        ("slots", lambda b: b.slots[None], "slots.shape: got (1, 72), expected [max_len], contiguous"),
        ("slots", lambda b: b.slots[::2], "slots.shape: got (36,), expected [max_len], contiguous"),
        ("slots", lambda b: changed(b.slots, 16, -1), "slots[16]: got -1, expected a slot in 0..96"),
        ("slots", lambda b: changed(b.slots, 32, 105), "slots[32]: got 105, expected a slot in 0..104"),
        ("length", lambda b: 73, "length: got 73, expected 0..72 (entries of slots)"),
        ("length", lambda b: -1, "length: got -1, expected 0..72"),
        ("block_size", lambda b: 40, "block_size: got 40, expected a positive multiple of page_size = 16"),
        ("block_size", lambda b: 0, "block_size: got 0, expected a positive multiple of page_size = 16"),
        ("page_size", lambda b: 0, "page_size: got 0, expected at least 1"),
        ("num_threads", lambda b: 0, "num_threads: got 0, expected at least 1"),
    ],
)  # fmt: skip
def test_block_mass_refuses(paged, name, change, message):
    batch = paged([40], [30])
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        smartgen_kernel.block_mass(**mass_arguments(batch) | {name: change(batch)})


@pytest.mark.parametrize("operator", ["block_digest", "block_bounds"])
def test_folds_refuse(paged, operator):
    batch = paged([40])
    keywords = {"block_size": 32, "page_size": 16}
    if operator == "block_digest":
        keywords["sub_tokens"] = 8
    function = getattr(smartgen_kernel, operator)
    narrow = torch.zeros(112, 3, 24, dtype=BF16)
    for arguments, changes, message in (
        ((narrow, batch.slots, 40), {}, "k_cache.shape[2]: got 24, expected a positive multiple of 16"),
        ((batch.k_cache.half(), batch.slots, 40), {}, "k_cache.dtype: got torch.float16"),
        ((batch.k_cache, changed(batch.slots, 0, 200), 40), {}, "slots[0]: got 200, expected a slot in 0..96"),
        ((batch.k_cache, batch.slots, 100), {}, "length: got 100, expected 0..72"),
        ((batch.k_cache, batch.slots, 40), {"block_size": 8}, "block_size: got 8, expected a positive multiple"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            function(*arguments, **keywords | changes)


@pytest.mark.parametrize("sub_tokens", [0, 5, 64])
def test_sub_blocks_divide_blocks(paged, sub_tokens):
    batch = paged([40])
    message = f"sub_tokens: got {sub_tokens}, expected a divisor of block_size = 32"
    with pytest.raises(ValueError, match=re.escape(message)):
        smartgen_kernel.block_digest(
            batch.k_cache, batch.slots, 40, block_size=32, page_size=16, sub_tokens=sub_tokens
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k, q, d: k.digest_scores(q, d[0], 40, block_size=32, scale=1.0), "digest.shape: got (4, 3, 64)"),
        (lambda k, q, d: k.digest_scores(q, d[..., :48], 40, block_size=32, scale=1.0), "digest.shape: got (2, 4,"),
        (lambda k, q, d: k.digest_scores(q, d.float(), 40, block_size=32, scale=1.0), "digest.dtype: got torch."),
        (lambda k, q, d: k.digest_scores(q, d[:, ::2], 40, block_size=32, scale=1.0), "digest.stride: got"),
        (lambda k, q, d: k.digest_scores(q[:, :8], d, 40, block_size=32, scale=1.0), "q.shape[1]: got 8, expected"),
        (lambda k, q, d: k.digest_scores(q[..., :40], d, 40, block_size=32, scale=1.0), "q.shape[2]: got 40, expected"),
        (lambda k, q, d: k.digest_scores(q, d, 65, block_size=32, scale=1.0), "length: got 65, expected 0..64"),
        (lambda k, q, d: k.digest_scores(q, d, 4, block_size=30, scale=1.0), "digest.shape[1]: got 4"),
        (lambda k, q, d: k.bound_scores(q, d, 40, block_size=32, scale=1.0), "bounds.shape[1]: got 4, expected 2"),
        (lambda k, q, d: k.bound_scores(q, d[:, :2].clone(), 40, block_size=32, scale=-1.0), "scale: got -1.0"),
    ],
)  # fmt: skip
def test_scores_refuse(call, message):
    q, digest = torch.zeros(1, 9, 64, dtype=BF16), torch.zeros(2, 4, 3, 64, dtype=BF16)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call(smartgen_kernel, q, digest)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("pages", lambda b, p: p.long(), "pages.dtype: got torch.int64, expected torch.int32"),
        ("pages", lambda b, p: p[0], "pages.shape: got (3,), expected two dimensions, contiguous rows"),
        ("pages", lambda b, p: p.repeat(2, 1), "pages.shape[0]: got 2, expected 1 rows as q"),
        ("pages", lambda b, p: changed(p, (0, 1), 97), "pages[0, 1]: got 97, expected a slot in 0..96"),
        ("pages", lambda b, p: changed(p, (0, 2), -1), "pages[0, 2]: got -1, expected a slot in 0..104"),
        ("page_counts", lambda b, p: torch.tensor([4]), "page_counts[0]: got 4, expected 0..3 (width of pages)"),
        ("page_counts", lambda b, p: torch.tensor([-1]), "page_counts[0]: got -1, expected 0..3"),
        ("page_counts", lambda b, p: torch.tensor([0]), "lengths[0]: got 40, expected 0..0 (0 pages)"),
        ("page_counts", lambda b, p: torch.tensor([3, 3]), "page_counts.shape: got (2,), expected (1,)"),
        ("lengths", lambda b, p: torch.tensor([32]), "lengths[0]: got 32, expected 33..48 (3 pages)"),
        ("lengths", lambda b, p: torch.tensor([49]), "lengths[0]: got 49, expected 33..48 (3 pages)"),
        ("lengths", lambda b, p: torch.tensor([40.0]), "lengths.dtype: got torch.float32"),
        ("q", lambda b, p: b.q[..., :40], "q.shape[2]: got 40, expected a positive multiple of 16"),
    ],
)  # fmt: skip
def test_partial_attention_refuses(paged, name, change, message):
    batch = paged([40], [39])
    pages = batch.slots[:40:16][None].contiguous()
    arguments = {
        "q": batch.q, "k_cache": batch.k_cache, "v_cache": batch.v_cache, "pages": pages,
        "page_counts": torch.tensor([3]), "lengths": torch.tensor([40]), "page_size": 16, "scale": 0.125,
    }  # fmt: skip
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        smartgen_kernel.partial_attention(**arguments | {name: change(batch, pages)})
