"""Turns a GGUF file into an ordinary Hugging Face folder: `convert.py GGUF OUTPUT`.

A process of its own, because it needs a gigabyte of memory and the libraries that the rest of
the command line never loads. No network is used.
"""

import os
import sys
from pathlib import Path


def convert(gguf: Path, output: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        quantization_config=GgufConfig(dequantize=True),
        dtype="bfloat16",
        local_files_only=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name, local_files_only=True)
    if not tokenizer.chat_template:
        raise SystemExit(f"{name} carries no chat template")
    # The weights are plain bf16 now; nobody who loads them needs the GGUF settings.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
