"""CPU kernels of SmartGen: paged attention, what selects its blocks, and the small operators around it.

Every function takes torch CPU tensors, checks them, and calls the kernel of one instruction set with the GIL
released.  A tensor that does not fit raises ``ValueError`` with the argument, what it was and what was expected,
before anything is written.  Element types are bfloat16 and float32, the same for all tensors of a call unless
its docstring says otherwise.

Common keywords: ``num_threads`` (default ``torch.get_num_threads()``; 1 enters no parallel region) and ``isa``
(default: the fastest this machine runs, or the one named by ``SMARTGEN_KERNEL_ISA``).
"""

from __future__ import annotations

from smartgen_kernel._attention import decode_attention, extend_attention, partial_attention
from smartgen_kernel._elementwise import (
    fused_add_rmsnorm,
    linear,
    rmsnorm,
    rotary_embedding,
    silu_and_mul,
)
from smartgen_kernel._isa import available_isas, isa
from smartgen_kernel._selection import (
    block_bounds,
    block_digest,
    block_mass,
    bound_scores,
    digest_scores,
)

__all__ = [
    "available_isas",
    "block_bounds",
    "block_digest",
    "block_mass",
    "bound_scores",
    "decode_attention",
    "digest_scores",
    "extend_attention",
    "fused_add_rmsnorm",
    "isa",
    "linear",
    "partial_attention",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
]
