"""A tiny random Llama model with its tokenizer, and prompts for it, handed out as fixtures.

The weights are wide enough that attention is peaked and every restriction shows in the output.
"""

import atexit
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import pytest
import torch
from smartgen import ops as operators
from smartgen import profile as profiles
from smartgen.ops import Backend
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.identity import identity_of
from smartgen.profiler.prompts import Prompt
from smartgen.profiler.sample import Sampler
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 512
PAGE, BLOCK, ANSWER = 4, 8, 6
_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@atexit.register
def _let_sentencepiece_end() -> None:
    """transformers loads sentencepiece, which warns while the interpreter ends and crashes it if that raises.

    The interpreter then goes by the filters of the last warning, which were pytest's: hence one more warning.
    """
    warnings.filterwarnings("ignore", "builtin type swigvarlink", DeprecationWarning)
    warnings.warn("builtin type swigvarlink", DeprecationWarning, stacklevel=1)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Bytes with a few merges: every text survives the round trip."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>", "<user>", "<system>", "<assistant>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["the mayor of the town in the text above is mentioned"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", chat_template=_TEMPLATE
    )


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A model folder; keywords replace fields of its config."""

    def make(seed: int = 0, **changed: object) -> Path:
        folder = tmp_path_factory.mktemp("models") / "tiny"
        fields: dict[str, object] = {
            "num_hidden_layers": 3,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 300,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.25,
            "bos_token_id": None,
            "eos_token_id": 0,
        }
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(**(fields | changed))).save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def folder(make_model: Callable[..., Path]) -> Path:
    return make_model()


@pytest.fixture(scope="session")
def model(folder: Path) -> CausalLM:
    return CausalLM(folder, torch.float32)


@pytest.fixture(scope="session")
def eager(folder: Path) -> LlamaForCausalLM:
    """The same weights as transformers itself runs them."""
    return LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return _tokenizer()


@pytest.fixture(scope="session")
def ops() -> Backend:
    return operators.backend()


@pytest.fixture(scope="session")
def sampler(model: CausalLM, ops: Backend) -> Sampler:
    return Sampler(model, ops, page_size=PAGE, block_size=BLOCK, answer_tokens=ANSWER)


@pytest.fixture(scope="session")
def profile(folder: Path, model: CausalLM) -> profiles.Profile:
    """The generic rule, but for layers that differ and a finer digest in one of them."""
    rule = profiles.generic(identity_of(folder, model, PAGE, BLOCK))
    (only,) = rule.sensitivity.bins
    kl = tuple(tuple(x * share for x in row) for row, share in zip(only.kl, (1, 4, 2), strict=True))
    return msgspec.structs.replace(
        rule,
        sensitivity=msgspec.structs.replace(
            rule.sensitivity, bins=(msgspec.structs.replace(only, kl=kl),)
        ),
        on_demand=msgspec.structs.replace(rule.on_demand, layers=(1,), digest="means-4"),
    )


@pytest.fixture(scope="session")
def make_prompt() -> Callable[..., Prompt]:
    """A prompt of `tokens` random tokens."""

    def make(tokens: int, *, seed: int = 0, kind: str = "random", **fields: object) -> Prompt:
        choice = random.Random(seed)
        ids = [choice.randrange(4, 300) for _ in range(tokens)]
        return Prompt(name=f"{kind}-{seed}-{tokens}", kind=kind, tokens=ids, **fields)

    return make
