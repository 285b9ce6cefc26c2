"""Runs the comparison: prompts one by one, all methods on each, results written as they come."""

import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from smartgen import ops as operators
from smartgen import profile as profiles
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.identity import identity_of
from smartgen.profiler.judge import Judge, floor_of
from smartgen.profiler.methods import Method
from smartgen.profiler.progress import Progress
from smartgen.profiler.prompts import Prompt, Split, fingerprint, make_prompts, read_prompts
from smartgen.profiler.sample import Sampler
from smartgen.select import SelectError

from smartgen_lab.accuracy.plan import standard_methods
from smartgen_lab.accuracy.results import Results

# Candidates for each kind; the model answers a part of the questions right, which are then those for retrieval.
HELD_OUT_PROMPTS = {
    "needle": 18,
    "multi-needle": 18,
    "question": 18,
    "code": 8,
    "prose": 8,
    "summary": 8,
}
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """prompts: a file, or made ones; only: names of a part of the methods; scale: of the number of prompts.

    page_size holds where there is no profile, which says its own.
    """

    model: Path
    profile: Path | None
    prompts: Path | None
    output: Path | None
    dtype: str = "bfloat16"
    page_size: int = 16
    answer_tokens: int = 32
    seed: int = 1
    scale: float = 1.0
    only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """rows of every prompt and method; floor: mean KL of the server's type against float32, None for float32."""

    rows: list[dict[str, Any]]
    floor: float | None
    prompts: int
    resumed: bool


def run(wanted: Wanted, progress: Progress) -> Report:
    """Raises ProfilerError for input that cannot be used."""
    ops = operators.backend()
    model = CausalLM(wanted.model, _DTYPES[wanted.dtype])
    profile = _profile(wanted, model)
    sampler = _sampler(model, wanted, profile)
    prompts = _prompts(wanted, model)
    methods = _methods(wanted, profile)
    settings = {
        "model": profile.identity.model,
        "config_sha256": profile.identity.config_sha256,
        "dtype": wanted.dtype,
        "page_size": profile.identity.page_size,
        "block_size": profile.identity.block_size,
        "answer_tokens": wanted.answer_tokens,
        "seed": wanted.seed,
        "prompts_sha256": fingerprint(prompts),
        "profile_sha256": hashlib.sha256(profiles.dump(profile).encode()).hexdigest(),
        "methods": [method.name for method in methods],
    }
    sampler.check(prompts)
    judge = Judge(sampler, ops, profile, methods, only_right=wanted.prompts is None)
    with closing(Results(wanted.output, settings)) as results:
        progress.stage("prompts", len(prompts))
        for prompt in prompts:
            if prompt.name not in results.done():
                results.add(_judged(judge, prompt))
            progress.done()
    floor = (
        None if wanted.dtype == "float32" else _floor(wanted, profile, sampler, prompts, progress)
    )
    return Report(rows=results.rows, floor=floor, prompts=len(prompts), resumed=results.resumed)


def _profile(wanted: Wanted, model: CausalLM) -> profiles.Profile:
    """The given one, the shipped one, or the generic rule: what a server would use, whatever is computed in here."""
    if wanted.profile is None:
        served = _served(wanted, model, wanted.page_size, wanted.page_size)
        return profiles.shipped(served) or profiles.generic(served)
    profile = profiles.load(wanted.profile)
    made_for = profile.identity
    served = _served(wanted, model, made_for.page_size, made_for.block_size)
    profiles.check_fits(profile, served, name=str(wanted.profile))
    return profile


def _served(wanted: Wanted, model: CausalLM, page_size: int, block_size: int) -> profiles.Identity:
    identity = identity_of(wanted.model, model, page_size, block_size)
    return msgspec.structs.replace(identity, dtype="bfloat16")


def _sampler(model: CausalLM, wanted: Wanted, profile: profiles.Profile) -> Sampler:
    return Sampler(
        model,
        operators.backend(),
        page_size=profile.identity.page_size,
        block_size=profile.identity.block_size,
        answer_tokens=wanted.answer_tokens,
    )


def _prompts(wanted: Wanted, model: CausalLM) -> list[Prompt]:
    if wanted.prompts is not None:
        return read_prompts(wanted.prompts, model.tokenizer)
    counts = {kind: max(1, round(wanted.scale * n)) for kind, n in HELD_OUT_PROMPTS.items()}
    made = make_prompts(model.tokenizer, Split.HELD_OUT, counts, wanted.seed)
    return _in_turns(made)


def _methods(wanted: Wanted, profile: profiles.Profile) -> list[Method]:
    methods = standard_methods(profile)
    if not wanted.only:
        return methods
    chosen = [method for method in methods if method.name in wanted.only]
    if unknown := sorted(set(wanted.only) - {method.name for method in chosen}):
        names = ", ".join(method.name for method in methods)
        raise ProfilerError(f"there is no method {unknown[0]!r}; known are {names}")
    return chosen


def _judged(judge: Judge, prompt: Prompt) -> list[dict[str, Any]]:
    try:
        return judge.rows(prompt)
    except SelectError as error:
        raise ProfilerError(str(error)) from error


def _floor(
    wanted: Wanted,
    profile: profiles.Profile,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    progress: Progress,
) -> float:
    """On every tenth prompt: float32 takes twice as long."""
    exact = _sampler(CausalLM(wanted.model, torch.float32), wanted, profile)
    some = prompts[::10]
    progress.stage("floor of the number type", len(some))
    kl: list[float] = []
    for prompt in some:
        rounded = sampler.sample(prompt)
        outcome = floor_of(exact.sample(prompt, inputs=rounded.inputs), rounded)
        kl.append(sum(outcome.kl) / len(outcome.kl))
        progress.done()
    return sum(kl) / len(kl)


def _in_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """One of each kind after the other, so that the file of a run that was broken off is no lopsided set."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    longest = max(map(len, by_kind.values()))
    # Kinds with fewer prompts take their turns as evenly as the others.
    places = [
        (index * longest / len(some), prompt)
        for some in by_kind.values()
        for index, prompt in enumerate(some)
    ]
    return [prompt for _, prompt in sorted(places, key=lambda place: place[0])]
