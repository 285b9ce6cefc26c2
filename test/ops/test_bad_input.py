"""Every wrong argument is refused by name, value and expectation, before a kernel runs."""

import os
import re
import subprocess
import sys

import pytest
import smartgen_kernel
import torch

BF16 = torch.bfloat16


def call_extend(batch, **changes):
    names = ("q", "k_cache", "v_cache", "req_to_token", "rows", "prefix_lens", "seq_lens")
    arguments = (
        {name: getattr(batch, name) for name in names} | {"page_size": 16, "scale": 0.125} | changes
    )
    return smartgen_kernel.extend_attention(**arguments)


def changed(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda b: b.q.half(), "q.dtype: got torch.float16, expected torch.bfloat16 or torch.float32"),
        ("q", lambda b: b.q.float(), "k_cache.dtype: got torch.bfloat16, expected torch.float32"),
        ("q", lambda b: b.q.to("meta"), "q.device: got meta, expected cpu"),
        ("q", lambda b: b.q[:, 0], "q.shape: got (40, 64), expected [tokens, heads, head_size]"),
        ("q", lambda b: b.q[1:], "q: rows: got 39, expected 40 = sum of seq_lens - prefix_lens"),
        ("q", lambda b: b.q[:, :8], "q.shape[1]: got 8, expected a positive multiple of the 3 heads of k_cache"),
        ("q", lambda b: b.q[..., :60], "q.shape[2]: got 60, expected a positive multiple of 16"),
        ("q", lambda b: b.q.transpose(1, 2).contiguous().transpose(1, 2), "q.stride: got"),
        ("k_cache", lambda b: b.k_cache[..., :48], "k_cache.shape: got (112, 3, 48), expected [slots, kv_heads, 64]"),
        ("k_cache", lambda b: b.k_cache.transpose(0, 1).contiguous().transpose(0, 1), "k_cache.stride: got"),
        ("v_cache", lambda b: b.v_cache[1:], "v_cache.shape: got (111, 3, 64), expected (112, 3, 64) as k_cache"),
        ("v_cache", lambda b: b.v_cache.to("meta"), "v_cache.device: got meta, expected cpu"),
        ("req_to_token", lambda b: b.req_to_token.long(), "req_to_token.dtype: got torch.int64, expected torch.int32"),
        ("req_to_token", lambda b: b.req_to_token[0], "req_to_token.shape: got"),
        ("rows", lambda b: b.rows.float(), "rows.dtype: got torch.float32, expected torch.int32 or torch.int64"),
        ("rows", lambda b: changed(b.rows, 0, 3), "rows[0]: got 3, expected 0..2 (rows of req_to_token)"),
        ("rows", lambda b: changed(b.rows, 0, -1), "rows[0]: got -1"),
        ("seq_lens", lambda b: b.seq_lens[:0], "rows.shape: got (1,), expected (0,)"),
        ("seq_lens", lambda b: changed(b.seq_lens, 0, 10**6), "seq_lens[0]: got 1000000, expected 0..72"),
        ("prefix_lens", lambda b: changed(b.prefix_lens, 0, -1), "prefix_lens[0]: got -1, expected 0..seq_lens[i]"),
        ("prefix_lens", lambda b: b.prefix_lens.to("meta"), "prefix_lens.device: got meta, expected cpu"),
        ("page_size", lambda b: 0, "page_size: got 0, expected at least 1"),
        ("out", lambda b: torch.empty(40, 9, 32, dtype=BF16), "out.shape: got (40, 9, 32), expected (40, 9, 64)"),
        ("out", lambda b: torch.empty(40, 9, 128, dtype=BF16)[..., ::2], "out.stride: got"),
        ("lse2", lambda b: torch.empty(40, 9, dtype=BF16), "lse2.dtype: got torch.bfloat16, expected torch.float32"),
        ("num_threads", lambda b: 0, "num_threads: got 0, expected at least 1"),
        ("isa", lambda b: "mmx", "isa: got 'mmx', available here: "),
    ],
)  # fmt: skip
def test_extend_refuses(paged, name, change, message):
    batch = paged([40])
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call_extend(batch, **{name: change(batch)})


def test_a_slot_outside_the_pool_is_refused(paged):
    batch = paged([40])
    row = int(batch.rows[0])
    for slot in (-1, 112 - 15, 2**30):
        table = changed(batch.req_to_token, (row, 16), slot)
        with pytest.raises(
            ValueError,
            match=re.escape(f"req_to_token[{row}, 16]: got {slot}, expected a slot in 0..96"),
        ):
            call_extend(batch, req_to_token=table)


def test_decode_needs_one_query_per_request(paged):
    batch = paged([40])
    with pytest.raises(ValueError, match=re.escape("rows.shape: got (1,), expected (40,)")):
        smartgen_kernel.decode_attention(
            batch.q,
            batch.k_cache,
            batch.v_cache,
            batch.req_to_token,
            batch.rows,
            batch.seq_lens,
            page_size=16,
            scale=1.0,
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda k: k.rmsnorm(torch.ones(2, 4), torch.ones(5), 1e-5), "weight.shape: got (5,), expected (4,)"),
        (lambda k: k.rmsnorm(torch.ones(2, 4), torch.ones(4, dtype=BF16), 1e-5), "weight.dtype: got torch.bfloat16"),
        (lambda k: k.rmsnorm(torch.ones(4), torch.ones(4), 1e-5), "x.shape: got (4,), expected two dimensions"),
        (lambda k: k.rmsnorm(torch.ones(4, 4), torch.ones(4), 1e-5, out=torch.ones(4, 3)), "out.shape: got (4, 3)"),
        (lambda k: k.rmsnorm(torch.ones(4, 8)[:, ::2], torch.ones(4), 1e-5), "x.stride: got (8, 2)"),
        (
            lambda k: k.fused_add_rmsnorm(torch.ones(2, 4), torch.ones(3, 4), torch.ones(4), 1e-5),
            "residual.shape: got (3, 4), expected (2, 4)",
        ),
        (lambda k: k.silu_and_mul(torch.ones(2, 5)), "x.shape[1]: got 5, expected an even number"),
        (lambda k: k.silu_and_mul(torch.ones(2, 4), torch.ones(2, 3)), "out.shape: got (2, 3), expected (2, 2)"),
        (lambda k: k.linear(torch.ones(9, 4), torch.ones(2, 4)), "x.shape[0]: got 9, expected at most 8"),
        (lambda k: k.linear(torch.ones(1, 4), torch.ones(4, 2).T), "weight.stride: got (1, 2)"),
        (lambda k: k.linear(torch.ones(1, 4), torch.ones(2, 4), torch.ones(3)), "bias.shape: got (3,), expected (2,)"),
        (
            lambda k: k.rotary_embedding(
                torch.tensor([5]), torch.ones(1, 16), torch.ones(1, 8), torch.ones(5, 8), 8
            ),
            "positions[0]: got 5, expected 0..4 (rows of cos_sin_cache)",
        ),
        (
            lambda k: k.rotary_embedding(
                torch.tensor([0]), torch.ones(1, 16), torch.ones(1, 8), torch.ones(5, 10), 8
            ),
            "cos_sin_cache.shape[1]: got 10, expected an even number up to head_size = 8",
        ),
    ],
)  # fmt: skip
def test_elementwise_refuses(call, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        call(smartgen_kernel)


def run_with_isa(name):
    return subprocess.run(
        [sys.executable, "-c", "import smartgen_kernel; print(smartgen_kernel.isa())"],
        env=os.environ | {"SMARTGEN_KERNEL_ISA": name},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_forces_an_isa_and_an_unknown_one_names_what_there_is():
    assert run_with_isa("portable").stdout.strip() == "portable"
    failed = run_with_isa("avx10")
    assert failed.returncode != 0
    assert (
        f"isa: got 'avx10', available here: {', '.join(smartgen_kernel.available_isas())}"
        in failed.stderr
    )
