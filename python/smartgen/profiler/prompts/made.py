"""Prompts of several kinds, made from a seed: facts to find, passages to answer from, text to go on with."""

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from smartgen.profiler.prompts import facts, sources
from smartgen.profiler.prompts.prompt import Prompt, Split, chat_tokens, split_of, text_tokens

_SHORTEST, _LONGEST = 900, 3800  # tokens of context, before question and template
_CONTINUATION = 33

Context = tuple[str, str]  # document name, text of about the wanted length


def make_prompts(tokenizer: Any, split: Split, counts: dict[str, int], seed: int) -> list[Prompt]:
    """`counts[kind]` prompts of each kind from documents of that split; the same arguments give the same prompts."""
    maker = _Maker(tokenizer, split, random.Random(f"{seed}/{split.value}"))
    return [prompt for kind in KINDS if kind in counts for prompt in maker.many(kind, counts[kind])]


class _Maker:
    def __init__(self, tokenizer: Any, split: Split, choice: random.Random) -> None:
        self._tokenizer = tokenizer
        self._random = choice
        self._docs = _of_split(sources.documentation(), split)
        self._code = _of_split(sources.code(), split)
        self._split = split

    def many(self, kind: str, count: int) -> Iterator[Prompt]:
        for number in range(count):
            # Lengths are spread evenly, so that every length bin of a small set is filled.
            tokens = int(
                _SHORTEST * (_LONGEST / _SHORTEST) ** ((number + self._random.random()) / count)
            )
            yield _MAKERS[kind](self, f"{kind}-{number:03d}", tokens)

    def needle(self, name: str, tokens: int) -> Prompt:
        """One fact in a text about something else."""
        return self._with_facts(name, "needle", tokens, 1)

    def multi_needle(self, name: str, tokens: int) -> Prompt:
        """Several facts of one form; the question asks for one of them."""
        return self._with_facts(name, "multi-needle", tokens, self._random.randrange(2, 5))

    def question(self, name: str, tokens: int) -> Prompt:
        """Passages about invented towns in a text about something else; one of them answers the question."""
        document, text = self._haystack(tokens)
        told = facts.towns(self._random, self._random.randrange(2, 5))
        town = self._random.choice(told)
        asked, answer = town.question(self._random)
        body = self._hidden(text, [one.text for one in told])
        return self._chat(f"{name}:{document}", "question", f"{body}\n\n{asked}", answer)

    def summary(self, name: str, tokens: int) -> Prompt:
        document, text = self._context(self._random.choice([self._docs, self._code]), tokens)
        asked = self._random.choice(facts.SUMMARY_REQUESTS)
        return self._chat(f"{name}:{document}", "summary", f"{text}\n\n{asked}", None)

    def code(self, name: str, tokens: int) -> Prompt:
        return self._going_on(name, "code", self._code, tokens)

    def prose(self, name: str, tokens: int) -> Prompt:
        return self._going_on(name, "prose", self._docs, tokens)

    def _with_facts(self, name: str, kind: str, tokens: int, count: int) -> Prompt:
        document, text = self._haystack(tokens)
        needles = facts.needles(self._random, count)
        asked = self._random.choice(needles)
        body = self._hidden(text, [needle.text for needle in needles])
        return self._chat(f"{name}:{document}", kind, f"{body}\n\n{asked.question}", asked.answer)

    def _hidden(self, text: str, passages: list[str]) -> str:
        """The text with each passage between two of its paragraphs, not before the first."""
        paragraphs = text.split("\n\n")
        for passage in passages:
            paragraphs.insert(self._random.randrange(1, max(2, len(paragraphs))), passage)
        return "\n\n".join(paragraphs)

    def _haystack(self, tokens: int) -> Context:
        if self._random.random() < 0.4:
            return f"{self._split.value}/story", self._cut(
                facts.story(self._random, tokens), tokens
            )
        return self._context(self._random.choice([self._docs, self._docs, self._code]), tokens)

    def _going_on(self, name: str, kind: str, documents: dict[str, str], tokens: int) -> Prompt:
        document, text = self._context(documents, tokens + _CONTINUATION)
        ids = text_tokens(self._tokenizer, text)
        return Prompt(
            name=f"{name}:{document}",
            kind=kind,
            tokens=ids[:-_CONTINUATION],
            continuation=ids[-_CONTINUATION:],
        )

    def _chat(self, name: str, kind: str, content: str, answer: str | None) -> Prompt:
        ids = chat_tokens(self._tokenizer, [{"role": "user", "content": content}])
        return Prompt(name=name, kind=kind, tokens=ids, answer=answer)

    def _context(self, documents: dict[str, str], tokens: int) -> Context:
        """A piece of a document of about `tokens` tokens, from a line's start; short documents give what they have."""
        name = self._random.choice(sorted(documents))
        text = documents[name]
        start = self._random.randrange(max(1, len(text) - 5 * tokens))
        start = text.find("\n", start) + 1
        return name, self._cut(text[start:], tokens)

    def _cut(self, text: str, tokens: int) -> str:
        cut = self._tokenizer(
            text[: 8 * tokens], add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = cut.offset_mapping
        return text[: offsets[min(tokens, len(offsets)) - 1][1]]


def _of_split(documents: dict[str, str], split: Split) -> dict[str, str]:
    return {name: text for name, text in documents.items() if split_of(name) is split}


_MAKERS: Final[dict[str, Callable[[_Maker, str, int], Prompt]]] = {
    "needle": _Maker.needle,
    "multi-needle": _Maker.multi_needle,
    "question": _Maker.question,
    "code": _Maker.code,
    "prose": _Maker.prose,
    "summary": _Maker.summary,
}
KINDS: Final = tuple(_MAKERS)
