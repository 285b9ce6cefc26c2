"""What a prompt's KV weighs, and how long it and its prefill take."""

import json
from pathlib import Path

from smartgen.client import Answer

# One full Ethernet frame carries this share of KV: 1,448 of 1,514 bytes, the rest are headers.
WIRE_OVERHEAD = 1514 / 1448


def kv_shape(model: Path) -> tuple[int, int]:
    """(layers, bytes of one token's KV in all layers) of a Llama-like model in 16 bits."""
    config = json.loads((model / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    per_layer = 2 * 2 * config.get("num_key_value_heads", heads) * head_size
    return config["num_hidden_layers"], config["num_hidden_layers"] * per_layer


def prefill_seconds(answer: Answer) -> float:
    """From the start of the prompt's first forward pass to the end of its last, as prefill saw it."""
    info = answer.prefill_meta_info
    return float(info["prefill_finished_time"]) - float(info["forward_entry_time"])
