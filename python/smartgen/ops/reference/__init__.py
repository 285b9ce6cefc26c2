"""What each operator means, in plain torch. Slow, short, and tested against naive loops."""

from smartgen.ops.reference.attention import (
    decode_attention,
    extend_attention,
    merge,
    partial_attention,
)
from smartgen.ops.reference.elementwise import (
    fused_add_rmsnorm,
    linear,
    rmsnorm,
    rotary_embedding,
    silu_and_mul,
)
from smartgen.ops.reference.selection import (
    block_bounds,
    block_digest,
    block_mass,
    bound_scores,
    dequantize_digest,
    digest_scores,
    quantize_digest,
)

__all__ = [
    "block_bounds",
    "block_digest",
    "block_mass",
    "bound_scores",
    "decode_attention",
    "dequantize_digest",
    "digest_scores",
    "extend_attention",
    "fused_add_rmsnorm",
    "linear",
    "merge",
    "partial_attention",
    "quantize_digest",
    "rmsnorm",
    "rotary_embedding",
    "silu_and_mul",
]
