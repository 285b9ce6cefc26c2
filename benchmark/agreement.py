"""Do all ways of moving KV give the same answers, down to log-probabilities and KV bytes?

The same prompts run greedily on one ordinary server, on stock's pair (twice: their difference is
the floor that any comparison has) and on SmartGen's pair in both modes. With SmartGen both
servers report a checksum per layer of the KV they hold. Servers run one after the other on this
machine's loopback.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import requests
from arguments import logs_of, model_of, parser
from main import console, run
from rich.table import Table
from smartgen.client import Answer, DualClient, RequestFailed
from smartgen.launch import ServeMode
from smartgen_lab.cluster import Ground, aggregated, local_place, local_places, pair
from smartgen_lab.measure import Prompts, Records, Scenario, flush_cache, load_scenario

REFERENCE = "stock"
TIMEOUT_S = 300


class Settings(Scenario, frozen=True, kw_only=True):
    prompt_tokens: list[int]
    new_tokens: int
    top_logprobs: int
    chunk_tokens: int
    transfer_timeout_s: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one server or pair made of one prompt.

    top     per generated token: log-probabilities of the likeliest token ids
    digests checksums per layer on (prefill, decode); None where they are not reported
    """

    token_ids: tuple[int, ...]
    top: tuple[dict[int, float], ...]
    digests: tuple[list[int], list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Between two ways over all prompts; absolute log-probability differences.

    first   the token that prefill made
    second  the first token that decode made from the KV that arrived
    later   the rest, as far as the tokens before agree
    """

    first: list[float]
    second: list[float]
    later: list[float]
    equal_texts: int


def difference(ours: list[Said], theirs: list[Said]) -> Difference:
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    equal = 0
    for a, b in zip(ours, theirs, strict=True):
        equal += a.token_ids == b.token_ids
        for position, (top_a, top_b) in enumerate(zip(a.top, b.top, strict=True)):
            if a.token_ids[:position] != b.token_ids[:position]:
                break
            shared = top_a.keys() & top_b.keys()
            found[min(position, 2)].extend(abs(top_a[token] - top_b[token]) for token in shared)
    return Difference(first=found[0], second=found[1], later=found[2], equal_texts=equal)


class Run:
    """Collects what each way says; `said` is keyed by the way's name."""

    def __init__(self, settings: Settings, model: Path, logs: Path, records: Records) -> None:
        self.settings = settings
        self.said: dict[str, list[Said]] = {}
        self._ground = Ground(
            model=model,
            chunk_tokens=settings.chunk_tokens,
            transfer_timeout_s=settings.transfer_timeout_s,
        )
        self._logs = logs
        self._records = records
        supply = Prompts(model, settings.seed)
        self._prompts = [supply.make(tokens) for tokens in settings.prompt_tokens]

    def aggregated(self) -> None:
        with aggregated(self._ground, local_place(), self._logs / "aggregated") as servers:
            url = servers.specs[0].url
            self._collect("aggregated", partial(self._ask_one, url))

    def stock(self) -> None:
        logs = self._logs / "stock"
        with pair(self._ground, ServeMode.STOCK, local_places(), logs) as servers:
            client = servers.client()
            for name in (REFERENCE, "stock again"):
                self._collect(name, partial(self._ask_pair, client, {}))

    def smartgen(self) -> None:
        logs = self._logs / "smartgen"
        with pair(self._ground, ServeMode.LAYERWISE, local_places(), logs, debug=True) as servers:
            client = servers.client()
            for mode in (ServeMode.LAYERWISE, ServeMode.FULL):
                wish = {"custom_params": {"smartgen": {"mode": mode.value}}}
                self._collect(mode.value, partial(self._ask_pair, client, wish))

    def _collect(self, name: str, ask: Callable[[list[int]], Said]) -> None:
        self.said[name] = []
        for prompt in self._prompts:
            said = ask(prompt)
            if len(said.top) != self.settings.new_tokens:
                raise SystemExit(f"{name}: log-probabilities of {len(said.top)} tokens came back")
            self.said[name].append(said)
            self._records.add(
                "answer",
                way=name,
                prompt_tokens=len(prompt),
                token_ids=said.token_ids,
                top=[{str(token): value for token, value in top.items()} for top in said.top],
                digests_equal=None if said.digests is None else said.digests[0] == said.digests[1],
            )
        console.print(f"{name}: {len(self._prompts)} prompts done")

    def _body(self) -> dict[str, Any]:
        return {"return_logprob": True, "top_logprobs_num": self.settings.top_logprobs}

    def _ask_pair(self, client: DualClient, wish: dict[str, Any], prompt: list[int]) -> Said:
        client.flush_caches()
        sampling = {"ignore_eos": True, **wish}
        answer = client.ask(
            prompt, max_new_tokens=self.settings.new_tokens, sampling=sampling, **self._body()
        )
        if answer.cached_tokens:
            raise SystemExit(
                f"prefill found {answer.cached_tokens} tokens of a prompt in its cache"
            )
        return Said(
            token_ids=_token_ids(answer.meta_info),
            top=_top(answer.meta_info),
            digests=_digests(answer),
        )

    def _ask_one(self, url: str, prompt: list[int]) -> Said:
        sampling = {
            "temperature": 0,
            "max_new_tokens": self.settings.new_tokens,
            "ignore_eos": True,
        }
        flush_cache(url)
        with requests.Session() as session:
            session.trust_env = False
            body = {"input_ids": prompt, "sampling_params": sampling, **self._body()}
            reply = session.post(url + "/generate", json=body, timeout=TIMEOUT_S)
        if reply.status_code != 200:
            raise RequestFailed("server", reply.status_code, reply.text[:300])
        info = reply.json()["meta_info"]
        return Said(token_ids=_token_ids(info), top=_top(info))


def _token_ids(info: Any) -> tuple[int, ...]:
    return tuple(token for _, token, *_ in info["output_token_logprobs"])


def _top(info: Any) -> tuple[dict[int, float], ...]:
    return tuple(
        {token: value for value, token, *_ in entries} for entries in info["output_top_logprobs"]
    )


def _digests(answer: Answer) -> tuple[list[int], list[int]] | None:
    both = [
        (info.get("smartgen") or [{}])[0].get("kv_digest")
        for info in (answer.prefill_meta_info, answer.meta_info)
    ]
    return None if None in both else (both[0], both[1])


def report(said: dict[str, list[Said]], records: Records) -> bool:
    """Whether SmartGen's ways stay within the floor and all checksums are equal."""
    table = Table(show_edge=False, pad_edge=False, title="|difference of log-probability| to stock")
    table.add_column("way")
    for title in ("first token", "second token", "later tokens", "equal texts", "KV checksums"):
        table.add_column(title, justify="right")
    good, floor = True, 0.0
    for name, answers in said.items():
        if name == REFERENCE:
            continue
        found = difference(answers, said[REFERENCE])
        worst = max(found.first + found.second, default=0.0)
        if name in ("aggregated", "stock again"):
            floor = max(floor, worst)
        digests = [s.digests for s in answers if s.digests is not None]
        equal_digests = sum(prefill == decode for prefill, decode in digests)
        if name in (ServeMode.LAYERWISE.value, ServeMode.FULL.value):
            good = good and worst <= max(floor, BF16_STEP) and equal_digests == len(answers)
        cells = [_show(values) for values in (found.first, found.second, found.later)]
        table.add_row(
            name,
            *cells,
            f"{found.equal_texts}/{len(answers)}",
            f"{equal_digests}/{len(answers)} equal" if digests else "-",
        )
        records.add(
            "summary",
            way=name,
            max_first=max(found.first, default=None),
            max_second=max(found.second, default=None),
            max_later=max(found.later, default=None),
            mean_second=_mean(found.second),
            equal_texts=found.equal_texts,
            prompts=len(answers),
            equal_digests=equal_digests if digests else None,
        )
    console.print(table)
    console.print(
        f"floor: {floor:.2g} between runs without SmartGen; one step of bf16 near 1 is {BF16_STEP:.2g}"
    )
    return good


# Spacing of bfloat16 numbers just below 1: what one differently rounded logit amounts to.
BF16_STEP = 2.0**-8


def _show(values: list[float]) -> str:
    return f"max {max(values):.2g}, mean {_mean(values):.2g}" if values else "-"


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def main() -> int:
    arguments_parser = parser("agreement", sys.modules[__name__].__doc__ or "")
    arguments_parser.add_argument("--prompts", type=int, help="only so many, spread over all")
    chosen: argparse.Namespace = arguments_parser.parse_args()
    settings = load_scenario(Settings, chosen.scenario)
    if chosen.prompts is not None:
        every = max(1, len(settings.prompt_tokens) // chosen.prompts)
        settings = load_scenario(
            Settings, chosen.scenario, prompt_tokens=settings.prompt_tokens[every - 1 :: every]
        )
    model, logs = model_of(chosen), logs_of(chosen)
    console.print(f"logs in {logs}", highlight=False)
    with Records(chosen.json, "agreement", settings.as_dict()) as records:
        session = Run(settings, model, logs, records)
        session.aggregated()
        session.stock()
        session.smartgen()
        good = report(session.said, records)
    return 0 if good else 1


if __name__ == "__main__":
    run(main)
