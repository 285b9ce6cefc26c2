"""Inputs shared by the operator tests: paged caches whose unused slots hold NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import smartgen_kernel
import torch
from smartgen.ops import Tolerance
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Paged:
    """One batch over a pool: scattered pages, poison wherever no request has a token."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    req_to_token: Tensor
    rows: Tensor
    prefix_lens: Tensor
    seq_lens: Tensor
    page_size: int

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def extend(
        self, operator: Callable[..., tuple[Tensor, Tensor]], **keywords: object
    ) -> tuple[Tensor, Tensor]:
        return operator(
            self.q, self.k_cache, self.v_cache, self.req_to_token, self.rows, self.prefix_lens, self.seq_lens,
            page_size=self.page_size, scale=self.scale, **keywords,
        )  # fmt: skip

    def decode(
        self, operator: Callable[..., tuple[Tensor, Tensor]], **keywords: object
    ) -> tuple[Tensor, Tensor]:
        """The last query of every request (all have at least one fresh token, or none and length 0)."""
        last = (self.seq_lens - self.prefix_lens).cumsum(0) - 1
        return operator(
            self.q[last.clamp(min=0)], self.k_cache, self.v_cache, self.req_to_token, self.rows, self.seq_lens,
            page_size=self.page_size, scale=self.scale, **keywords,
        )  # fmt: skip

    @property
    def slots(self) -> Tensor:
        """Row of the only request."""
        (row,) = self.rows.tolist()
        return self.req_to_token[row]

    def blocks(self, operator: Callable[..., Tensor], **keywords: object) -> Tensor:
        """An operator over the keys of the only request."""
        return operator(
            self.k_cache, self.slots, int(self.seq_lens), page_size=self.page_size, **keywords
        )

    def block_mass(
        self, operator: Callable[..., Tensor], lse2: Tensor, **keywords: object
    ) -> Tensor:
        """The operator for the fresh tokens of the only request, whose attention gave `lse2`."""
        positions = torch.arange(int(self.prefix_lens), int(self.seq_lens))
        return operator(
            self.q, lse2, positions, self.k_cache, self.slots, int(self.seq_lens),
            page_size=self.page_size, scale=self.scale, **keywords,
        )  # fmt: skip


def make_paged(
    seq_lens: Sequence[int],
    prefix_lens: Sequence[int] | None = None,
    *,
    heads: int = 9,
    kv_heads: int = 3,
    head_size: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    index_dtype: torch.dtype = torch.int64,
    seed: int = 0,
) -> Paged:
    prefix_lens = [0] * len(seq_lens) if prefix_lens is None else prefix_lens
    generator = torch.Generator().manual_seed(seed)
    pages_of = [-(-length // page_size) for length in seq_lens]
    pages = torch.randperm(sum(pages_of) + 3, generator=generator) + 1
    width = max([*seq_lens, 1]) + 2 * page_size
    table = torch.full((len(seq_lens) + 2, width + 5), -(2**30), dtype=torch.int32)[
        :, :width
    ]  # row stride > width
    rows = torch.randperm(len(seq_lens) + 2, generator=generator)[: len(seq_lens)]
    shape = ((sum(pages_of) + 4) * page_size, kv_heads, head_size)
    k_cache, v_cache = torch.full(shape, math.nan), torch.full(shape, math.inf)
    used = 0
    for row, length, count in zip(rows.tolist(), seq_lens, pages_of, strict=True):
        slots = (pages[used : used + count, None] * page_size + torch.arange(page_size)).flatten()[
            :length
        ]
        table[row, :length] = slots.to(torch.int32)
        k_cache[slots] = torch.randn(length, kv_heads, head_size, generator=generator) * 1.5
        v_cache[slots] = torch.randn(length, kv_heads, head_size, generator=generator)
        used += count
    tokens = sum(seq_lens) - sum(prefix_lens)
    return Paged(
        q=torch.randn(tokens, heads, head_size, generator=generator).to(dtype),
        k_cache=k_cache.to(dtype),
        v_cache=v_cache.to(dtype),
        req_to_token=table,
        rows=rows.to(index_dtype),
        prefix_lens=torch.tensor(prefix_lens, dtype=index_dtype),
        seq_lens=torch.tensor(seq_lens, dtype=index_dtype),
        page_size=page_size,
    )


def check_close(got: Tensor, expected: Tensor, tolerance: Tolerance) -> None:
    assert got.dtype == expected.dtype
    torch.testing.assert_close(
        got.float(), expected.float(), rtol=tolerance.relative, atol=tolerance.absolute
    )


def check_lse2(got: Tensor, expected: Tensor, tolerance: Tolerance) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance.lse2)


@pytest.fixture(name="paged")
def _paged() -> Callable[..., Paged]:
    return make_paged


@pytest.fixture(name="close")
def _close() -> Callable[[Tensor, Tensor, Tolerance], None]:
    return check_close


@pytest.fixture(name="lse2_close")
def _lse2_close() -> Callable[[Tensor, Tensor, Tolerance], None]:
    return check_lse2


@pytest.fixture(params=["avx512bf16", "avx512", "avx2", "portable"])
def isa(request: pytest.FixtureRequest) -> str:
    if request.param not in smartgen_kernel.available_isas():
        pytest.skip(f"this machine cannot run {request.param}")
    return request.param


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)
