"""An ordinary OpenAI client, timed: what any user of the router sees."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai

from smartgen.client.errors import RequestFailed
from smartgen.client.timing import Timing, timing


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """One answer. `timing` counts streamed pieces, of which SGLang sends one per token."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    timing: Timing


def ask_chat(
    url: str, question: str, *, model: str = "default", max_tokens: int = 48, timeout_s: float = 300
) -> ChatAnswer:
    """Ask the OpenAI-compatible server at `url` (without `/v1`), greedily. Raises RequestFailed."""
    times: list[float] = []
    text: list[str] = []
    usage = (0, 0)
    with _translated_errors(), httpx.Client(trust_env=False, timeout=timeout_s) as http:
        client = openai.OpenAI(
            base_url=url + "/v1", api_key="none", http_client=http, max_retries=0
        )
        started = time.monotonic()
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.usage is not None:
                usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
            if chunk.choices and (piece := chunk.choices[0].delta.content):
                times.append(time.monotonic() - started)
                text.append(piece)
    if not times:
        raise RequestFailed("router", 200, "the stream ended without a token")
    return ChatAnswer(
        text="".join(text),
        prompt_tokens=usage[0],
        completion_tokens=usage[1],
        timing=timing(times),
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except openai.APIStatusError as error:
        raise RequestFailed("router", error.status_code, error.message) from error
    except (openai.OpenAIError, httpx.HTTPError) as error:
        raise RequestFailed("router", None, str(error)) from error
