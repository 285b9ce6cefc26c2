"""A tokenised prompt, the split it belongs to, and the fingerprint of a set."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from jinja2 import TemplateError

from smartgen.profiler.errors import ProfilerError


class Split(Enum):
    """TRAIN prompts may shape a profile; HELD_OUT prompts only judge it."""

    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """tokens as the model sees them; `answer` must occur in a right answer; `continuation`: what really follows."""

    name: str
    kind: str
    tokens: list[int]
    answer: str | None = None
    continuation: list[int] | None = None


class NoTemplate(ProfilerError):
    """The tokenizer has no chat template, or one that refuses the messages."""


def split_of(document: str) -> Split:
    """By the document's name alone: one of three documents trains."""
    return Split.TRAIN if hashlib.sha256(document.encode()).digest()[0] % 3 == 0 else Split.HELD_OUT


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """sha256 over all that the prompts hold, in order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(f"{astuple(prompt)!r}\n".encode())
    return digest.hexdigest()


def chat_tokens(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """The model's chat template, ready for its answer. Raises NoTemplate where there is none for these messages."""
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
    except (ValueError, TemplateError) as error:
        raise NoTemplate(
            f"the chat template does not take these messages ({error}); use raw prompts or another model"
        ) from error
    tokens: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return tokens


def text_tokens(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return tokens
