"""A measuring client that posts the same body to a prefill and a decode server.

This is what SGLang's router does, but the Rust router relays nothing until prefill's whole answer
has arrived; posting directly shows when each token really left the decode server.
"""

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

from smartgen.client.errors import RequestFailed
from smartgen.client.timing import Timing, timing


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One finished request.

    token_times_s   arrival of each token at this client, seconds since both posts were sent;
                    tokens that came in one event share a time
    prefill_s       when prefill's answer was complete
    meta_info       as the decode server reported it with the last event
    prefill_meta_info  as the prefill server reported it
    """

    text: str
    token_ids: tuple[int, ...]
    token_times_s: tuple[float, ...]
    prefill_s: float
    meta_info: Mapping[str, Any]
    prefill_meta_info: Mapping[str, Any]

    @property
    def timing(self) -> Timing:
        return timing(self.token_times_s)

    @property
    def prompt_tokens(self) -> int:
        return int(self.meta_info["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that prefill found in its prefix cache."""
        return int(self.prefill_meta_info.get("cached_tokens") or 0)


@dataclass
class _Prefill:
    """What the thread that waits for prefill brings back."""

    finished_s: float = 0.0
    body: dict[str, Any] = field(default_factory=dict)
    error: RequestFailed | None = None


@dataclass(frozen=True, kw_only=True)
class DualClient:
    """Where the two servers are.

    bootstrap_host  prefill's address as the decode server reaches it
    timeout_s       longest silence of either server
    """

    prefill_url: str
    decode_url: str
    bootstrap_host: str
    bootstrap_port: int
    timeout_s: float = 300.0

    def ask(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 16,
        sampling: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Answer:
        """Greedy unless `sampling` says otherwise; `more` goes into the body as it is.

        Raises RequestFailed for whatever went wrong first.
        """
        body: dict[str, Any] = {
            ("text" if isinstance(prompt, str) else "input_ids"): (
                prompt if isinstance(prompt, str) else list(prompt)
            ),
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": max_new_tokens,
                **(sampling or {}),
            },
            "bootstrap_host": self.bootstrap_host,
            "bootstrap_port": self.bootstrap_port,
            # Bit 63 stays clear; room 0 is SGLang's own for health checks.
            "bootstrap_room": random.getrandbits(62) + 1,
            **more,
        }
        return self._measure(body)

    def flush_caches(self) -> None:
        """Drop both prefix caches, so that the next prompt is computed and moved in full."""
        for where, url in (("prefill", self.prefill_url), ("decode", self.decode_url)):
            with _session() as session:
                reply = session.post(url + "/flush_cache", timeout=self.timeout_s)
                if reply.status_code != 200:
                    raise RequestFailed(where, reply.status_code, reply.text.strip())

    def _measure(self, body: Mapping[str, Any]) -> Answer:
        prefill = _Prefill()
        started = time.monotonic()
        thread = threading.Thread(
            target=self._ask_prefill, args=(body, started, prefill), name="ask-prefill", daemon=True
        )
        thread.start()
        times: list[float] = []
        last: dict[str, Any] = {}
        try:
            for event in self._stream_decode({**body, "stream": True}):
                count = int(event["meta_info"]["completion_tokens"])
                times += [time.monotonic() - started] * (count - len(times))
                last = event
        except RequestFailed:
            # Where prefill failed first, its reason is the cause and decode's the consequence.
            thread.join(timeout=1.0)
            if prefill.error is not None:
                raise prefill.error from None
            raise
        thread.join()
        if prefill.error is not None:
            raise prefill.error
        if not times:
            raise RequestFailed("decode", 200, "the stream ended without a token")
        return Answer(
            text=last.get("text", ""),
            token_ids=tuple(last.get("output_ids") or ()),
            token_times_s=tuple(times),
            prefill_s=prefill.finished_s,
            meta_info=last["meta_info"],
            prefill_meta_info=prefill.body.get("meta_info", {}),
        )

    def _ask_prefill(self, body: Mapping[str, Any], started: float, into: _Prefill) -> None:
        try:
            with _session() as session:
                reply = session.post(
                    self.prefill_url + "/generate", json=body, timeout=self.timeout_s
                )
            into.finished_s = time.monotonic() - started
            if reply.status_code != 200:
                into.error = RequestFailed("prefill", reply.status_code, _reason(reply.text))
                return
            into.body = reply.json()
        except (requests.RequestException, ValueError) as error:
            into.error = RequestFailed("prefill", None, str(error))

    def _stream_decode(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        url = self.decode_url + "/generate"
        try:
            with (
                _session() as session,
                session.post(url, json=body, stream=True, timeout=self.timeout_s) as reply,
            ):
                if reply.status_code != 200:
                    raise RequestFailed("decode", reply.status_code, _reason(reply.text))
                for data in server_sent(reply.iter_content(chunk_size=None)):
                    event = json.loads(data)
                    if "error" in event:
                        error = event["error"]
                        raise RequestFailed("decode", error.get("code"), error.get("message", data))
                    yield event
        except (requests.RequestException, ValueError) as error:
            raise RequestFailed("decode", None, str(error)) from error


def server_sent(pieces: Iterator[bytes]) -> Iterator[str]:
    """The `data:` lines of a server-sent event stream up to `[DONE]`, as soon as each is whole."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip().decode()
                if data == "[DONE]":
                    return
                yield data


def _session() -> requests.Session:
    session = requests.Session()
    # Servers on this network must not be asked through a proxy.
    session.trust_env = False
    return session


def _reason(text: str) -> str:
    """The message of an error body, in whichever of SGLang's forms it comes."""
    try:
        body = json.loads(text)
    except ValueError:
        return text.strip()[:500]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
