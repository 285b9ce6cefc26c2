"""Cheap attribute checks shared by the operators: each names argument, value and expectation."""

from __future__ import annotations

from typing import NoReturn

import torch

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
INDEX_BYTES = {torch.int32: 4, torch.int64: 8}


def refuse(name: str, got: object, expected: str) -> NoReturn:
    raise ValueError(f"{name}: got {got}, expected {expected}")


def dtype_code(name: str, tensor: torch.Tensor) -> int:
    code = DTYPES.get(tensor.dtype)
    if code is None:
        refuse(f"{name}.dtype", tensor.dtype, "torch.bfloat16 or torch.float32")
    return code


def same_kind(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """On the CPU and of the given element type."""
    if not tensor.is_cpu:
        refuse(f"{name}.device", tensor.device, "cpu")
    if tensor.dtype is not dtype:
        refuse(f"{name}.dtype", tensor.dtype, str(dtype))


def exactly(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of the given shape and element type, on the CPU, contiguous."""
    same_kind(name, tensor, dtype)
    if tensor.shape != shape:
        refuse(f"{name}.shape", tuple(tensor.shape), str(tuple(shape)))
    if not tensor.is_contiguous():
        refuse(f"{name}.stride", tensor.stride(), "a contiguous tensor")


def index_bytes(name: str, tensor: torch.Tensor, length: int) -> int:
    """Item size of a contiguous int32 or int64 CPU vector of the given length."""
    size = INDEX_BYTES.get(tensor.dtype)
    if size is None:
        refuse(f"{name}.dtype", tensor.dtype, "torch.int32 or torch.int64")
    if not tensor.is_cpu:
        refuse(f"{name}.device", tensor.device, "cpu")
    if tensor.shape != (length,):
        refuse(f"{name}.shape", tuple(tensor.shape), f"({length},)")
    if not tensor.is_contiguous():
        refuse(f"{name}.stride", tensor.stride(), "a contiguous tensor")
    return size


def rows_of(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Row stride of a 2-D CPU tensor whose rows are contiguous."""
    same_kind(name, tensor, dtype)
    if tensor.dim() != 2:
        refuse(f"{name}.shape", tuple(tensor.shape), "two dimensions")
    row, item = tensor.stride()
    if (item != 1 and tensor.shape[1] > 1) or (row < tensor.shape[1] and tensor.shape[0] > 1):
        refuse(f"{name}.stride", (row, item), "contiguous, non-overlapping rows")
    return row


def query_shape(q: torch.Tensor) -> torch.Size:
    """Shape of queries whose heads are contiguous and a multiple of 16 wide."""
    dtype_code("q", q)
    same_kind("q", q, q.dtype)
    if q.dim() != 3:
        refuse("q.shape", tuple(q.shape), "[tokens, heads, head_size]")
    head_size = q.shape[2]
    if head_size % 16 or not head_size:
        refuse("q.shape[2]", head_size, "a positive multiple of 16")
    if q.stride(2) != 1:
        refuse("q.stride", q.stride(), "a contiguous last dimension")
    return q.shape


def slot_stride(name: str, cache: torch.Tensor, dtype: torch.dtype, head_size: int) -> int:
    """Elements from one slot to the next of a pool whose slots are contiguous."""
    same_kind(name, cache, dtype)
    shape = cache.shape
    if len(shape) != 3 or shape[2] != head_size:
        refuse(f"{name}.shape", tuple(shape), f"[slots, kv_heads, {head_size}]")
    slot, head, item = cache.stride()
    if item != 1 or head != head_size or slot < shape[1] * head_size:
        refuse(
            f"{name}.stride", cache.stride(), f"(at least {shape[1] * head_size}, {head_size}, 1)"
        )
    return slot


def check_group(name: str, kv_heads: int, heads: int) -> None:
    """Whether the query heads share the KV heads of the named tensor evenly."""
    if not kv_heads or heads % kv_heads or not heads:
        refuse("q.shape[1]", heads, f"a positive multiple of the {kv_heads} heads of {name}")


def threads(num_threads: int | None) -> int:
    if num_threads is None:
        return torch.get_num_threads()
    if num_threads < 1:
        refuse("num_threads", num_threads, "at least 1")
    return num_threads
