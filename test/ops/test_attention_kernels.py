"""Every attention kernel of every instruction set against the reference, and against itself."""

import math

import pytest
import smartgen_kernel
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smartgen.ops import TOLERANCES, reference

LENGTHS = [1, 15, 16, 17, 27, 61, 113, 1000]


@pytest.mark.parametrize("length", LENGTHS)
def test_extend_without_prefix(paged, close, lse2_close, isa, dtype, length):
    batch = paged([length], dtype=dtype)
    out, lse2 = batch.extend(smartgen_kernel.extend_attention, isa=isa)
    expected, expected_lse2 = batch.extend(reference.extend_attention)
    close(out, expected, TOLERANCES["attention"][dtype])
    lse2_close(lse2, expected_lse2, TOLERANCES["attention"][dtype])


@pytest.mark.parametrize("length", LENGTHS)
def test_decode(paged, close, lse2_close, isa, dtype, length):
    batch = paged([length], [length - 1], dtype=dtype)
    out, lse2 = batch.decode(smartgen_kernel.decode_attention, isa=isa)
    expected, expected_lse2 = batch.decode(reference.decode_attention)
    close(out, expected, TOLERANCES["attention"][dtype])
    lse2_close(lse2, expected_lse2, TOLERANCES["attention"][dtype])


@pytest.mark.parametrize("page_size", [1, 16, 32])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_requests_with_scattered_pages_and_different_prefixes(
    paged, close, lse2_close, isa, dtype, page_size, index_dtype
):
    batch = paged(
        [61, 300, 5, 32, 96],
        [32, 0, 4, 32, 64],
        dtype=dtype,
        page_size=page_size,
        index_dtype=index_dtype,
    )
    tolerance = TOLERANCES["attention"][dtype]
    out, lse2 = batch.extend(smartgen_kernel.extend_attention, isa=isa)
    expected, expected_lse2 = batch.extend(reference.extend_attention)
    close(out, expected, tolerance)
    lse2_close(lse2, expected_lse2, tolerance)
    out, lse2 = batch.decode(smartgen_kernel.decode_attention, isa=isa)
    expected, expected_lse2 = batch.decode(reference.decode_attention)
    close(out, expected, tolerance)
    lse2_close(lse2, expected_lse2, tolerance)


@pytest.mark.parametrize("head_size", [16, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(1, 1), (4, 2), (6, 2), (4, 1), (5, 1), (14, 2), (8, 1), (9, 1)]
)
def test_head_sizes_and_groups(paged, close, lse2_close, isa, dtype, head_size, heads, kv_heads):
    batch = paged(
        [70, 113], [32, 48], heads=heads, kv_heads=kv_heads, head_size=head_size, dtype=dtype
    )
    tolerance = TOLERANCES["attention"][dtype]
    for run, kernel, plain in (
        (batch.extend, smartgen_kernel.extend_attention, reference.extend_attention),
        (batch.decode, smartgen_kernel.decode_attention, reference.decode_attention),
    ):
        out, lse2 = run(kernel, isa=isa)
        expected, expected_lse2 = run(plain)
        close(out, expected, tolerance)
        lse2_close(lse2, expected_lse2, tolerance)


@pytest.mark.parametrize("heads", [3, 9])
@pytest.mark.parametrize("cuts", [[512], [16, 32, 528], [7, 8, 333], [640, 656]])
def test_chunks_give_the_bits_of_one_shot(paged, isa, dtype, cuts, heads):
    length = 700
    batch = paged([length], heads=heads, dtype=dtype)
    whole, whole_lse2 = batch.extend(smartgen_kernel.extend_attention, isa=isa)
    for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
        out, lse2 = smartgen_kernel.extend_attention(
            batch.q[begin:end], batch.k_cache, batch.v_cache, batch.req_to_token, batch.rows,
            torch.tensor([begin]), torch.tensor([end]), page_size=16, scale=batch.scale, isa=isa,
        )  # fmt: skip
        assert torch.equal(out, whole[begin:end])
        assert torch.equal(lse2, whole_lse2[begin:end])


def test_threads_and_batches_do_not_change_bits(paged, isa, dtype):
    batch = paged([300, 600, 40], [100, 0, 39], dtype=dtype)
    for run, kernel in (
        (batch.extend, smartgen_kernel.extend_attention),
        (batch.decode, smartgen_kernel.decode_attention),
    ):
        one, two = run(kernel, isa=isa, num_threads=1), run(kernel, isa=isa, num_threads=2)
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


def test_empty_requests(paged, isa, dtype):
    batch = paged([0, 20], [0, 19], dtype=dtype)
    out, lse2 = batch.decode(smartgen_kernel.decode_attention, isa=isa)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert (lse2[0] == -math.inf).all()
    assert lse2[1].isfinite().all()
    batch = paged([48, 48], [48, 48], dtype=dtype)
    out, lse2 = batch.extend(smartgen_kernel.extend_attention, isa=isa)
    assert out.shape[0] == lse2.shape[0] == 0


def test_nan_in_a_visible_token_is_reported_not_hidden(paged, isa, dtype):
    batch = paged([40], [39], dtype=dtype)
    batch.k_cache[batch.req_to_token[batch.rows[0], 3]] = math.nan
    for out, lse2 in (
        batch.extend(smartgen_kernel.extend_attention, isa=isa),
        batch.decode(smartgen_kernel.decode_attention, isa=isa),
    ):
        assert out.isnan().all()
        assert lse2.isnan().all()


def test_large_logits_and_negative_scale(paged, isa):
    batch = paged([200], dtype=torch.float32)
    for scale in (4.0, -1.0):
        arguments = (
            batch.q,
            batch.k_cache,
            batch.v_cache,
            batch.req_to_token,
            batch.rows,
            batch.prefix_lens,
            batch.seq_lens,
        )
        out, lse2 = smartgen_kernel.extend_attention(*arguments, page_size=16, scale=scale, isa=isa)
        expected, expected_lse2 = reference.extend_attention(*arguments, page_size=16, scale=scale)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(lse2, expected_lse2, rtol=1e-6, atol=1e-4)


def test_strided_queries_and_given_outputs(paged, isa, dtype):
    batch = paged([50, 33], [16, 32], dtype=dtype)
    qkv = torch.full((batch.q.shape[0], 15 * 64), math.nan, dtype=dtype)
    q = qkv[:, : 9 * 64].view(-1, 9, 64)
    q.copy_(batch.q)
    expected, expected_lse2 = batch.extend(smartgen_kernel.extend_attention, isa=isa)
    out, lse2 = torch.empty_like(expected), torch.empty_like(expected_lse2)
    got = smartgen_kernel.extend_attention(
        q, batch.k_cache, batch.v_cache, batch.req_to_token, batch.rows, batch.prefix_lens, batch.seq_lens,
        page_size=16, scale=batch.scale, out=out, lse2=lse2, isa=isa,
    )  # fmt: skip
    assert got[0] is out
    assert got[1] is lse2
    assert torch.equal(out, expected)
    assert torch.equal(lse2, expected_lse2)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    requests=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 70)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    head_size=st.sampled_from([16, 32, 64, 80, 112, 128]),
    page_size=st.sampled_from([1, 2, 7, 16, 64]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    isa=st.sampled_from(smartgen_kernel.available_isas()),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    paged, close, lse2_close, requests, kv_heads, group, head_size, page_size, dtype, isa, seed
):
    batch = paged(
        [prefix + fresh for prefix, fresh in requests], [prefix for prefix, _ in requests], heads=kv_heads * group,
        kv_heads=kv_heads, head_size=head_size, page_size=page_size, dtype=dtype, seed=seed,
    )  # fmt: skip
    tolerance = TOLERANCES["attention"][dtype]
    for run, kernel, plain in (
        (batch.extend, smartgen_kernel.extend_attention, reference.extend_attention),
        (batch.decode, smartgen_kernel.decode_attention, reference.decode_attention),
    ):
        out, lse2 = run(kernel, isa=isa)
        expected, expected_lse2 = run(plain)
        close(out, expected, tolerance)
        lse2_close(lse2, expected_lse2, tolerance)
