"""A Hugging Face model, layer by layer, with attention replaced by a function of ours.

Only the attention differs from what transformers would compute: projections, rotary embedding, norms and MLP are
the model's own modules. That lets one pass start in the middle (nothing before a restricted layer changes) and
keeps every kind of model that transformers loads with a plain decoder stack.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from smartgen.config import provide_variables
from smartgen.profiler.cache import CacheShape
from smartgen.profiler.errors import ProfilerError

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""(layer, q [tokens, heads, size], k [tokens, kv_heads, size], v like k, scale) -> out, shaped as q."""

_NAME = "smartgen_profiler"
_PARTS = ("embed_tokens", "rotary_emb", "layers", "norm")
_NEEDED = ("num_hidden_layers", "num_attention_heads", "max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What selection needs to know of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    dtype: torch.dtype

    def cache(self, page_size: int) -> CacheShape:
        return CacheShape(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            page_size=page_size,
            dtype=self.dtype,
        )


class CausalLM:
    """Weights, tokenizer and the loop over layers. Raises ProfilerError for a folder that holds no such model."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        provide_variables({"HF_HUB_OFFLINE": "1"})
        AttentionInterface.register(_NAME, _attention)
        try:
            self.config = AutoConfig.from_pretrained(folder)
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            self._model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=_NAME
            ).eval()
        except (OSError, ValueError, SafetensorError) as error:
            raise ProfilerError(
                f"{folder} cannot be loaded as a causal language model: {error}"
            ) from error
        self.shape = _shape(folder, self.config, dtype)
        self._stack: Any = getattr(self._model, "model", None)
        if missing := [name for name in _PARTS if not hasattr(self._stack, name)]:
            raise ProfilerError(
                f"{folder}: a {self.config.model_type} model has no {', '.join(missing)}; "
                "only plain decoder models can be profiled"
            )

    def embed(self, tokens: list[int]) -> Tensor:
        """[tokens, width]: the input of layer 0."""
        with torch.inference_mode():
            embedded: Tensor = self._stack.embed_tokens(torch.tensor([tokens]))[0]
        return embedded

    def run(
        self,
        hidden: Tensor,
        start: int,
        attend: Attend,
        *,
        first_layer: int = 0,
        keep: list[Tensor] | None = None,
    ) -> Tensor:
        """Layers first_layer .. of hidden [tokens, width] at the positions from `start` on.

        Returns the last layer's output. `keep` receives the input of every layer that ran.
        """
        with torch.inference_mode():
            positions = torch.arange(start, start + hidden.shape[0])[None]
            state = hidden[None]
            rotary = self._stack.rotary_emb(state, position_ids=positions)
            for layer in self._stack.layers[first_layer:]:
                if keep is not None:
                    keep.append(state[0])
                state = layer(
                    state,
                    attention_mask=None,
                    position_ids=positions,
                    position_embeddings=rotary,
                    use_cache=False,
                    smartgen_attend=attend,
                )
        return state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Last layer's output [tokens, width] -> [tokens, vocabulary] float32."""
        with torch.inference_mode():
            scores: Tensor = self._model.lm_head(self._stack.norm(hidden)).float()
        return scores

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ends = self._model.generation_config.eos_token_id
        return frozenset([ends] if isinstance(ends, int) else ends or ())


def _shape(folder: Path, config: Any, dtype: torch.dtype) -> Shape:
    missing = [name for name in _NEEDED if not hasattr(config, name)]
    if missing:
        raise ProfilerError(
            f"{folder}: config.json has no {', '.join(missing)}; only plain decoder models can be profiled"
        )
    heads = config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        context=config.max_position_embeddings,
        dtype=dtype,
    )


def _attention(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scaling: float,
    **rest: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    attend: Attend = rest["smartgen_attend"]
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    return attend(module.layer_idx, q, k, v, scaling)[None], None
