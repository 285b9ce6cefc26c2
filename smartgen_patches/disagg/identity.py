"""What this server is, in the words two peers compare before one writes into the other's memory."""

import hashlib
import json
from typing import Any

import smartgen
from sglang.srt.arg_groups.model_override_base import model_config_of
from smartgen.core import Identity, KVGeometry, Mode
from smartgen.wire import WIRE_VERSION

# Differ between copies of one model without changing what it computes.
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash", "torch_dtype", "dtype")


def geometry_of(kv_args: Any) -> KVGeometry:
    """The pool's shape: SGLang lists K of every layer, then V of every layer (MHA)."""
    sizes = tuple(int(size) for size in kv_args.kv_item_lens)
    return KVGeometry(layers=len(sizes) // 2, page_size=int(kv_args.page_size), page_bytes=sizes)


def identity_of(kv_args: Any, server_args: Any, mode: Mode) -> Identity:
    """The identity of the server that runs with these arguments."""
    geometry = geometry_of(kv_args)
    model = model_config_of(server_args)
    return Identity(
        product_version=smartgen.__version__,
        wire_version=WIRE_VERSION,
        mode=mode,
        page_size=geometry.page_size,
        model=_model_name(model.hf_config),
        dtype=_dtype_name(model.dtype, server_args.kv_cache_dtype),
        layers=geometry.layers,
        page_bytes=geometry.page_bytes,
    )


def _dtype_name(model_dtype: Any, kv_cache_dtype: str) -> str:
    name = str(model_dtype).removeprefix("torch.")
    return name if kv_cache_dtype == "auto" else f"{name} with {kv_cache_dtype} KV"


def _model_name(config: Any) -> str:
    """Architecture and a hash of the configuration: folders of any name with one model agree."""
    values = {k: v for k, v in config.to_dict().items() if k not in _VOLATILE}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
    name = "/".join(config.architectures or [type(config).__name__])
    return f"{name} ({config.num_hidden_layers} layers, config {digest[:12]})"
