"""The layer helpers of every instruction set against the reference, and against SGLang's own numerics."""

import pytest
import smartgen_kernel
import torch
from smartgen.ops import TOLERANCES, backend, reference

WIDTHS = [1, 7, 16, 27, 64, 113, 576, 1000]


def values(*shape, dtype, seed=0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


@pytest.mark.parametrize("width", WIDTHS)
def test_rmsnorm(close, isa, dtype, width):
    x, weight = values(5, width, dtype=dtype), values(width, dtype=dtype, seed=1)
    expected = reference.rmsnorm(x, weight, 1e-5)
    close(smartgen_kernel.rmsnorm(x, weight, 1e-5, isa=isa), expected, TOLERANCES["rmsnorm"][dtype])
    wide = values(5, width + 3, dtype=dtype)
    view = wide[:, :width].copy_(x)
    close(
        smartgen_kernel.rmsnorm(view, weight, 1e-5, out=view, isa=isa),
        expected,
        TOLERANCES["rmsnorm"][dtype],
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_fused_add_rmsnorm(close, isa, dtype, width):
    x, residual, weight = (values(5, width, dtype=dtype, seed=s) for s in range(3))
    weight = weight[0].contiguous()
    plain_x, plain_residual = x.clone(), residual.clone()
    smartgen_kernel.fused_add_rmsnorm(x, residual, weight, 1e-5, isa=isa)
    reference.fused_add_rmsnorm(plain_x, plain_residual, weight, 1e-5)
    assert torch.equal(residual, plain_residual)
    close(x, plain_x, TOLERANCES["rmsnorm"][dtype])


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_and_mul(close, isa, dtype, width):
    x = values(5, 2 * width, dtype=dtype) * 4
    close(
        smartgen_kernel.silu_and_mul(x, isa=isa),
        reference.silu_and_mul(x),
        TOLERANCES["silu_and_mul"][dtype],
    )


def test_silu_and_mul_of_extreme_values(isa, dtype):
    gate = torch.tensor([-1e30, -200.0, -88.0, -0.0, 88.0, 200.0, 1e30], dtype=dtype)
    x = torch.cat((gate, torch.ones_like(gate)))[None]
    got, expected = smartgen_kernel.silu_and_mul(x, isa=isa), reference.silu_and_mul(x)
    torch.testing.assert_close(got.float(), expected.float(), rtol=1e-2, atol=1e-6)
    x[0, 3] = torch.nan
    assert smartgen_kernel.silu_and_mul(x, isa=isa)[0, 3].isnan()


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(64, 64), (80, 32), (128, 128), (64, 36)])
@pytest.mark.parametrize(
    "cache_dtype", [torch.float32, torch.bfloat16], ids=["cache_fp32", "cache_bf16"]
)
def test_rotary_embedding_in_views_of_one_tensor(
    isa, dtype, neox, head_size, rotary_dim, cache_dtype
):
    tokens, q_heads, k_heads = 7, 9, 3
    qkv = values(tokens, (q_heads + 2 * k_heads) * head_size, dtype=dtype)
    cache = values(50, rotary_dim, dtype=cache_dtype).clamp(-1, 1)
    positions = torch.tensor([0, 49, 3, 3, 17, 1, 30], dtype=torch.int64)
    plain = qkv.clone()
    for tensor, function, keywords in (
        (qkv, smartgen_kernel.rotary_embedding, {"isa": isa}),
        (plain, reference.rotary_embedding, {}),
    ):
        q, k = (
            tensor[:, : q_heads * head_size],
            tensor[:, q_heads * head_size : (q_heads + k_heads) * head_size],
        )
        function(positions, q, k, cache, head_size, neox=neox, **keywords)
    assert torch.equal(qkv, plain)


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize(("features", "width"), [(1, 1), (7, 27), (64, 64), (130, 576), (33, 113)])
def test_linear(close, isa, dtype, rows, features, width):
    x, weight = values(rows, width, dtype=dtype), values(features, width, dtype=dtype, seed=1)
    bias = values(features, dtype=dtype, seed=2) if rows % 2 else None
    expected = reference.linear(x, weight, bias)
    close(smartgen_kernel.linear(x, weight, bias, isa=isa), expected, TOLERANCES["linear"][dtype])


def test_linear_of_a_row_does_not_depend_on_the_other_rows(isa, dtype):
    x, weight = values(8, 100, dtype=dtype), values(50, 100, dtype=dtype, seed=1)
    whole = smartgen_kernel.linear(x, weight, isa=isa)
    for row in range(8):
        assert torch.equal(smartgen_kernel.linear(x[row : row + 1], weight, isa=isa)[0], whole[row])


def test_backend_linear_takes_any_number_of_rows(close, dtype):
    for rows in (0, 1, 8, 9, 40):
        x, weight = values(rows, 64, dtype=dtype), values(30, 64, dtype=dtype, seed=1)
        close(
            backend("cpu").linear(x, weight),
            reference.linear(x, weight),
            TOLERANCES["linear"][dtype],
        )


def test_threads_do_not_change_bits(isa, dtype):
    x, weight = values(8, 576, dtype=dtype), values(576, dtype=dtype, seed=1)
    square = values(576, 576, dtype=dtype, seed=2)
    for function in (
        lambda n: smartgen_kernel.rmsnorm(x, weight, 1e-5, isa=isa, num_threads=n),
        lambda n: smartgen_kernel.silu_and_mul(x, isa=isa, num_threads=n),
        lambda n: smartgen_kernel.linear(x, square, isa=isa, num_threads=n),
    ):
        assert torch.equal(function(1), function(2))


@pytest.mark.sglang
def test_reference_rounds_as_sglang_does():
    layernorm = pytest.importorskip("sglang.srt.layers.layernorm", reason="SGLang is not installed")
    rotary = pytest.importorskip(
        "sglang.srt.layers.rotary_embedding.utils", reason="SGLang is not installed"
    )
    x, residual = values(5, 576, dtype=torch.bfloat16), values(5, 576, dtype=torch.bfloat16, seed=1)
    norm = layernorm.RMSNorm(576, eps=1e-5).to(torch.bfloat16)
    norm.weight.data.copy_(values(576, dtype=torch.bfloat16, seed=2))
    assert torch.equal(reference.rmsnorm(x, norm.weight.data, 1e-5), norm.forward_native(x))
    expected = norm.forward_native(x, residual)
    reference.fused_add_rmsnorm(x, residual, norm.weight.data, 1e-5)
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])
    q, cos_sin = (
        values(5, 9 * 64, dtype=torch.bfloat16),
        values(5, 64, dtype=torch.float32).clamp(-1, 1),
    )
    cos, sin = cos_sin.chunk(2, dim=-1)
    expected = rotary.apply_rotary_emb(q.view(5, 9, 64), cos, sin, True).flatten(1)
    reference.rotary_embedding(torch.arange(5), q, q.clone(), cos_sin, 64)
    assert torch.equal(q, expected)
