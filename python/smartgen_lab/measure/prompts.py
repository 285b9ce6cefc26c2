"""Prompts that read like text, made from a seed: no file, no download, no two alike.

Each begins with its own number, so no two share a prefix that a cache could serve.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

_PEOPLE = (
    "the baker", "an old sailor", "the new teacher", "her neighbour", "a young engineer",
    "the station master", "my grandmother", "the town clerk", "a travelling merchant",
    "the night watchman", "the youngest daughter", "a tired postman", "the village doctor",
)  # fmt: skip
_ACTS = (
    "walked down to", "wrote a long letter about", "could not forget", "repaired", "painted",
    "asked everybody about", "was afraid of", "measured", "sold", "took a photograph of",
    "kept a diary about", "returned late from", "told the children about", "planned to leave",
)  # fmt: skip
_THINGS = (
    "the wooden bridge", "the harbour", "a broken clock", "the school garden", "the first train",
    "the market square", "an empty house on the hill", "the river after the rain", "the museum",
    "a box full of maps", "the lighthouse", "the road to the mountains", "the winter festival",
)  # fmt: skip
_WHEN = (
    "in the morning", "before anyone else was awake", "during the long summer", "after the storm",
    "on the last Sunday of the month", "when the bells rang", "without saying a word",
    "although it was getting dark", "for the third time that week", "as the snow began to fall",
)  # fmt: skip
_JOINS = (
    "Meanwhile", "Later", "Even so", "Soon afterwards", "To everyone's surprise",
    "Because of this", "Years later",
)  # fmt: skip


class Prompts:
    """An endless supply; the same seed gives the same prompts."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._random = random.Random(seed)
        self._made = 0

    def make(self, tokens: int) -> list[int]:
        """Exactly `tokens` token ids."""
        self._made += 1
        opening = f"{self._random.randrange(10, 99)}-{self._made:03d}: "
        text = opening
        while True:
            text += " ".join(self._sentences(tokens // 10 + 2))
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) >= tokens:
                return ids[:tokens]
            text += " "

    def _sentences(self, count: int) -> Iterator[str]:
        choose = self._random.choice
        for index in range(count):
            body = f"{choose(_PEOPLE)} {choose(_ACTS)} {choose(_THINGS)} {choose(_WHEN)}"
            join = f"{choose(_JOINS)}, " if index % 3 == 2 else ""
            sentence = join + body
            yield sentence[0].upper() + sentence[1:] + "."
