"""The reference operators against naive loops: what they mean, spelled out key by key."""

import math

import pytest
import torch
from smartgen.ops import TOLERANCES, backend, merge, reference
from smartgen.ops.backends import _MODULES


def naive_attention(q, keys, values, scale):
    """One query row [heads, size] over keys and values [n, kv_heads, size]."""
    heads, size = q.shape
    out, lse2 = (
        torch.zeros(heads, size, dtype=torch.float64),
        torch.full((heads,), -math.inf, dtype=torch.float64),
    )
    for head in range(heads):
        kv_head = head * keys.shape[1] // heads
        logits = [float(q[head].double() @ key[kv_head].double()) * scale for key in keys]
        if logits:
            total = sum(math.exp(logit) for logit in logits)
            lse2[head] = math.log2(total)
            for logit, value in zip(logits, values, strict=True):
                out[head] += math.exp(logit) / total * value[kv_head].double()
    return out, lse2


@pytest.mark.parametrize("page_size", [1, 4])
def test_extend_and_decode_equal_a_loop_over_keys(paged, page_size):
    batch = paged(
        [9, 0, 14],
        [5, 0, 0],
        heads=4,
        kv_heads=2,
        head_size=16,
        page_size=page_size,
        dtype=torch.float32,
    )
    out, lse2 = batch.extend(reference.extend_attention)
    token = 0
    for row, prefix, length in zip(batch.rows, batch.prefix_lens, batch.seq_lens, strict=True):
        for position in range(int(prefix), int(length)):
            slots = batch.req_to_token[row, : position + 1].long()
            expected = naive_attention(
                batch.q[token], batch.k_cache[slots], batch.v_cache[slots], batch.scale
            )
            torch.testing.assert_close(out[token].double(), expected[0], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(lse2[token].double(), expected[1], rtol=0, atol=1e-5)
            token += 1
    decoded, decoded_lse2 = batch.decode(reference.decode_attention)
    torch.testing.assert_close(decoded[[0, 2]], out[[3, 17]])
    torch.testing.assert_close(decoded_lse2[[0, 2]], lse2[[3, 17]])
    assert (decoded[1] == 0).all()
    assert (decoded_lse2[1] == -math.inf).all()


def test_merge_of_two_halves_is_the_whole(close, lse2_close, dtype):
    q, keys, values = torch.randn(4, 16), torch.randn(11, 2, 16), torch.randn(11, 2, 16)
    halves = [
        naive_attention(q, keys[part], values[part], 0.25) for part in (slice(0, 3), slice(3, 11))
    ]
    (out_a, lse2_a), (out_b, lse2_b) = [
        (out[None].to(dtype), lse2[None].float()) for out, lse2 in halves
    ]
    out, lse2 = merge(out_a, lse2_a, out_b, lse2_b)
    expected, expected_lse2 = naive_attention(q, keys, values, 0.25)
    inputs_rounded = TOLERANCES["attention"][dtype]
    close(out, expected[None].to(dtype), inputs_rounded)
    lse2_close(lse2, expected_lse2[None].float(), TOLERANCES["merge"][dtype])


def test_merge_with_an_empty_side_is_the_other_side_bit_for_bit(dtype):
    out_a, lse2_a = torch.randn(3, 2, 16).to(dtype), torch.randn(3, 2)
    empty, nothing = torch.full_like(out_a, math.nan), torch.full_like(lse2_a, -math.inf)
    for out, lse2 in (merge(out_a, lse2_a, empty, nothing), merge(empty, nothing, out_a, lse2_a)):
        assert torch.equal(out, out_a)
        assert torch.equal(lse2, lse2_a)
    assert (merge(out_a, nothing, out_a, nothing)[1] == -math.inf).all()


def test_rmsnorm_equals_its_formula():
    x, weight = torch.randn(3, 20), torch.randn(20)
    expected = [
        [v / math.sqrt(sum(u * u for u in row) / 20 + 1e-5) for v in row] for row in x.tolist()
    ]
    torch.testing.assert_close(reference.rmsnorm(x, weight, 1e-5), torch.tensor(expected) * weight)
    residual = torch.randn(3, 20)
    total, normed = x + residual, reference.rmsnorm(x + residual, weight, 1e-5)
    reference.fused_add_rmsnorm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert torch.equal(x, normed)


def test_silu_and_mul_equals_its_formula():
    x = torch.randn(2, 14)
    expected = [
        [g / (1 + math.exp(-g)) * u for g, u in zip(row[:7], row[7:], strict=True)]
        for row in x.tolist()
    ]
    torch.testing.assert_close(reference.silu_and_mul(x), torch.tensor(expected))


@pytest.mark.parametrize("neox", [True, False])
def test_rotary_embedding_turns_each_pair_by_its_angle(neox):
    head_size, rotary_dim = 12, 8
    angles = torch.rand(5, rotary_dim // 2)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q, k = torch.randn(3, 2 * head_size), torch.randn(3, head_size)
    positions = torch.tensor([4, 0, 2])
    before = {"q": q.clone(), "k": k.clone()}
    reference.rotary_embedding(positions, q, k, cache, head_size, neox=neox)
    for name, after in (("q", q), ("k", k)):
        for token, position in enumerate(positions):
            for head in range(after.shape[1] // head_size):
                old = before[name][token, head * head_size :][:head_size]
                new = old.clone()
                for i in range(rotary_dim // 2):
                    a, b = (i, i + rotary_dim // 2) if neox else (2 * i, 2 * i + 1)
                    turned = complex(old[a], old[b]) * complex(
                        math.cos(angles[position, i]), math.sin(angles[position, i])
                    )
                    new[a], new[b] = turned.real, turned.imag
                torch.testing.assert_close(after[token, head * head_size :][:head_size], new)


def test_backends_are_found_by_name_and_offer_the_same_operators():
    for name in _MODULES:
        assert set(backend(name).__all__) == set(reference.__all__)
    assert backend() is backend("cpu")
    with pytest.raises(
        ValueError, match=r"backend: got 'gpu', expected one of auto, cpu, reference"
    ):
        backend("gpu")
