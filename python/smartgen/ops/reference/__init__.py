"""What each operator means, in plain torch. Slow, short, and tested against naive loops."""

from smartgen.ops.reference.attention import decode_attention, extend_attention, merge
from smartgen.ops.reference.elementwise import (
    fused_add_rmsnorm,
    linear,
    rmsnorm,
    rotary_embedding,
    silu_and_mul,
)

__all__ = [
    "decode_attention",
    "extend_attention",
    "fused_add_rmsnorm",
    "linear",
    "merge",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
]
