"""Prompts from a JSON Lines file: `kind`, `prompt` or `messages`, optionally `answer`."""

import json
from pathlib import Path
from typing import Any

from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.prompts.prompt import NoTemplate, Prompt, chat_tokens, text_tokens

_FIELDS = frozenset({"kind", "prompt", "messages", "answer", "name"})


class PromptsFileError(ProfilerError):
    """A prompts file that cannot be used; the message names file, line and remedy."""


def read_prompts(path: Path, tokenizer: Any) -> list[Prompt]:
    """Every prompt of the file, in order. `prompt` is taken as raw text, `messages` go through the chat template."""
    try:
        # Not splitlines: a JSON text may hold other line separators as they are.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsFileError(f"{path} cannot be read as UTF-8 text: {error}") from error
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}:{number}"
            prompt = _prompt(where, line, tokenizer)
            if prompt.name in prompts:
                raise PromptsFileError(
                    f"{where}: another prompt is named {prompt.name!r}; give each its own name"
                )
            prompts[prompt.name] = prompt
    if not prompts:
        raise PromptsFileError(f"{path} holds no prompt; give it one JSON object per line")
    return [*prompts.values()]


def _prompt(where: str, line: str, tokenizer: Any) -> Prompt:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # refuses half characters
    except (ValueError, RecursionError) as error:
        cause = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise PromptsFileError(
            f"{where}: not JSON ({cause}); one object per line is expected"
        ) from error
    if not isinstance(record, dict):
        raise PromptsFileError(f"{where}: a JSON object is expected, got {type(record).__name__}")
    if unknown := sorted(set(record) - _FIELDS):
        raise PromptsFileError(
            f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}"
        )
    if ("prompt" in record) == ("messages" in record):
        raise PromptsFileError(f"{where}: give either prompt or messages")
    for name in ("kind", "answer", "name", "prompt"):
        if not isinstance(record.get(name, ""), str):
            raise PromptsFileError(f"{where}: {name} must be text, got {record[name]!r}")
    if record.get("answer") == "":
        raise PromptsFileError(f"{where}: answer is empty; leave it out or say what must occur")
    try:
        tokens = (
            text_tokens(tokenizer, record["prompt"])
            if "prompt" in record
            else chat_tokens(tokenizer, _messages(where, record["messages"]))
        )
    except NoTemplate as error:
        raise PromptsFileError(f"{where}: {error}") from error
    if not tokens:
        raise PromptsFileError(f"{where}: the prompt is empty; give it at least one token")
    return Prompt(
        name=record.get("name", where.rpartition("/")[2]),
        kind=record.get("kind", "file"),
        tokens=tokens,
        answer=record.get("answer"),
    )


def _messages(where: str, messages: object) -> list[dict[str, str]]:
    right = isinstance(messages, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in messages
    )
    if not right or not messages:
        raise PromptsFileError(
            f"{where}: messages must be a list of objects with text role and content"
        )
    return messages  # type: ignore[return-value]
