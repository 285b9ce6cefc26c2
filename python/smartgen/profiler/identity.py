"""A model folder's identity, as a profile holds it and a server compares it."""

import hashlib
import importlib.metadata
import json
from pathlib import Path

import torch

from smartgen import profile as profiles
from smartgen.profiler.causal_lm import CausalLM

# What changes attention; names, paths and library versions in config.json do not.
_FIELDS = (
    "architectures",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "vocab_size",
)
_SOFTWARE = ("smartgen", "smartgen-kernel", "torch", "transformers")


def identity_of(
    folder: Path, model: CausalLM, page_size: int, block_size: int
) -> profiles.Identity:
    """Reads config.json and the chat template beside it."""
    shape = model.shape
    template = folder / "chat_template.jinja"
    return profiles.Identity(
        model=folder.resolve().name,
        config_sha256=config_sha256(folder),
        dtype=dtype_name(shape.dtype),
        page_size=page_size,
        block_size=block_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        chat_template_sha256=(
            hashlib.sha256(template.read_bytes()).hexdigest() if template.exists() else None
        ),
    )


def config_sha256(folder: Path) -> str:
    """Of the fields of config.json that change attention, in canonical form."""
    config = json.loads((folder / "config.json").read_text())
    kept = {name: config[name] for name in _FIELDS if config.get(name) is not None}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def software() -> dict[str, str]:
    """Versions of what took part."""
    found = {}
    for name in _SOFTWARE:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
