"""Builds a model profile: measures training prompts one by one, fits the tables, then judges held-out prompts."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch

from smartgen import ops as operators
from smartgen import profile as profiles
from smartgen.profiler import fit
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.identity import identity_of, software
from smartgen.profiler.journal import Journal
from smartgen.profiler.judge import Judge, floor_of, is_right
from smartgen.profiler.measure import Measure
from smartgen.profiler.methods import Choice, Demand, Method
from smartgen.profiler.options import Options
from smartgen.profiler.policies import OnDemand
from smartgen.profiler.progress import Progress
from smartgen.profiler.prompts import Prompt, Split, fingerprint, make_prompts
from smartgen.profiler.sample import Sample, Sampler
from smartgen.profiler.summary import mean_of

Values = dict[str, Any]


class Builder:
    """`prompts` replaces the made training prompts. Raises ProfilerError for input that cannot be used."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        progress: Progress,
        *,
        work: Path,
        prompts: Callable[[Any], list[Prompt]] | None = None,
    ) -> None:
        self._folder = folder
        self._options = options
        self._progress = progress
        self._ops = operators.backend()
        self._model = CausalLM(folder, torch.bfloat16)
        self._sampler = self._sampler_of(self._model)
        tokenizer = self._model.tokenizer
        train = (
            prompts(tokenizer)
            if prompts is not None
            else make_prompts(tokenizer, Split.TRAIN, options.train, options.seed)
        )
        first, step = options.part
        self._train = train[first - 1 :: step]
        self._held_out = make_prompts(tokenizer, Split.HELD_OUT, options.held_out, options.seed)
        self._refuse_unfit()
        self._journal = Journal(
            work,
            {
                "model": _contents(folder),
                "options": _plain(options),
                "prompts": fingerprint([*self._train, *self._held_out]),
            },
        )
        self.resumed = self._journal.resumed

    def build(self) -> profiles.Profile:
        """Minutes of work; what is finished survives an interrupt."""
        profile = self._fitted(self._measured())
        profile = self._with_signal(profile)
        profile = self._with_on_demand(profile)
        profile = msgspec.structs.replace(profile, floor=self._floor())
        profile = self._with_held_out(profile)
        profiles.dump(profile)  # refuses bad values while the work is still there
        self._journal.remove()
        return profile

    def _refuse_unfit(self) -> None:
        """What would fail after minutes fails now."""
        if not self._train or not self._held_out:
            raise ProfilerError(
                "there are no prompts to measure or none to judge; give at least one of each"
            )
        self._sampler.check([*self._train, *self._held_out])
        _, _, part = self._options.digest.partition("means-")
        if part and self._options.block_size % int(part):
            raise ProfilerError(
                f"digest {self._options.digest} does not divide blocks of {self._options.block_size} tokens; "
                f"use a block size that is a multiple of {part}"
            )

    def _measured(self) -> list[Values]:
        self._signal = self._best_signal("signals", None)
        return self._stage("layers", self._train, self._layers)

    def _with_signal(self, profile: profiles.Profile) -> profiles.Profile:
        """Chosen again where it will serve: with every layer's own budget another one may be best."""
        signal = self._best_signal("signals within budgets", profile)
        return msgspec.structs.replace(profile, signal=signal)

    def _best_signal(self, stage: str, profile: profiles.Profile | None) -> profiles.Signal:
        options = self._options

        def measured(prompt: Prompt) -> Values | None:
            sample = self._right_sample(prompt)
            if sample is None:
                return None
            measure = Measure(self._sampler, self._ops, sample)
            kl = measure.signals(options.signals, options.signal_fractions, profile)
            return {"signals": kl}

        some = _spread(self._train, options.signal_prompts)
        return fit.best_signal(self._stage(stage, some, measured), options)

    def _layers(self, prompt: Prompt) -> Values | None:
        sample = self._right_sample(prompt)
        if sample is None:
            return None
        measure = Measure(self._sampler, self._ops, sample)
        return {
            "kind": prompt.kind,
            "tokens": sample.tokens,
            "scored": len(sample.inputs),
            "sensitivity": measure.sensitivity(self._signal.selector, self._options.fractions),
            "position": measure.position(32, self._options.position_bins),
        }

    def _right_sample(self, prompt: Prompt) -> Sample | None:
        """None for a question that the model answers wrong even with all KV: such answers are noise."""
        sample = self._sampler.sample(prompt)
        return None if is_right(self._model, prompt, sample.answer) is False else sample

    def _fitted(self, measured: Sequence[Values]) -> profiles.Profile:
        options = self._options
        table = fit.sensitivity(measured, options)
        kinds = [values["kind"] for values in measured]
        profile = profiles.Profile(
            identity=identity_of(self._folder, self._model, options.page_size, options.block_size),
            calibration=profiles.Calibration(
                prompts_sha256=fingerprint(self._train),
                prompts=len(measured),
                kinds={kind: kinds.count(kind) for kind in sorted(set(kinds))},
                scored_tokens=sum(values["scored"] for values in measured),
                seed=options.seed,
            ),
            sensitivity=table,
            position=fit.position(measured),
            signal=self._signal,
            on_demand=profiles.OnDemand(
                layers=tuple(range(self._model.shape.layers)),
                top_fraction=options.on_demand_top,
                digest=options.digest,
                step_bins=(),
                expected_fetch=(),
            ),
            floor=None,
            held_out=(),
            targets=(),
            software=software(),
        )
        return msgspec.structs.replace(profile, targets=fit.targets(profile, options))

    def _with_on_demand(self, profile: profiles.Profile) -> profiles.Profile:
        """Fetching in every layer shows what each layer asks for; then the ones that pay are kept."""
        options = self._options
        method = Method(
            selector=profile.signal.selector,
            budget="profile",
            fraction=options.on_demand_base,
            demand=Demand(digest=options.digest, layers="all", top=options.on_demand_top),
        )

        def fetch(prompt: Prompt) -> Values | None:
            sample = self._right_sample(prompt)
            if sample is None:
                return None
            policy = Choice(sample, self._ops, self._model.shape.layers, profile).policy(method)
            self._sampler.rows(sample, policy)
            assert isinstance(policy, OnDemand)
            blocks = sample.blocks * self._model.shape.layers
            first = [policy.fetched[layer][0] / blocks for layer in range(self._model.shape.layers)]
            return {"tokens": sample.tokens, "first": first}

        some = _spread(self._train, options.on_demand_prompts)
        fetched = self._stage("fetching", some, fetch)
        layers = fit.on_demand_layers(profile, fetched, options)
        on_demand = msgspec.structs.replace(profile.on_demand, layers=layers)
        return msgspec.structs.replace(profile, on_demand=on_demand)

    def _floor(self) -> profiles.Floor:
        """The server's type against float32, on the first prompts of each kind."""
        exact = self._sampler_of(CausalLM(self._folder, torch.float32))
        prompts = _spread(self._train, self._options.floor_prompts)

        def compare(prompt: Prompt) -> Values:
            rounded = self._sampler.sample(prompt)
            outcome = floor_of(exact.sample(prompt, inputs=rounded.inputs), rounded)
            return {"kl": outcome.kl, "agree": outcome.agree}

        found = self._stage("bf16 floor", prompts, compare)
        kl = [x for values in found for x in values["kl"]]
        agree = [x for values in found for x in values["agree"]]
        return profiles.Floor(kl=sum(kl) / len(kl), agreement=sum(agree) / len(agree))

    def _with_held_out(self, profile: profiles.Profile) -> profiles.Profile:
        """Acceptance on prompts that shaped nothing, and what on-demand fetching is to expect."""
        static = [
            Method(selector=profile.signal.selector, budget="profile", fraction=fraction)
            for fraction in (0.1, 0.2, 0.3, 0.5)
        ]
        fetching = Method(
            selector=profile.signal.selector,
            budget="profile",
            fraction=0.1,
            demand=Demand(digest=profile.on_demand.digest, layers="profile"),
        )
        judge = Judge(self._sampler, self._ops, profile, [*static, fetching], only_right=True)
        found = self._stage("held-out", self._held_out, lambda p: {"rows": judge.rows(p)})
        rows = [row for values in found for row in values["rows"]]
        steps, shares = _expected_fetch(
            [r["fetched_steps"] for r in rows if r["method"] == fetching.name]
        )
        on_demand = msgspec.structs.replace(
            profile.on_demand, step_bins=steps, expected_fetch=shares
        )
        return msgspec.structs.replace(
            profile,
            on_demand=on_demand,
            held_out=tuple(_held_out(method, rows) for method in static),
        )

    def _stage(
        self, name: str, prompts: Sequence[Prompt], work: Callable[[Prompt], Values | None]
    ) -> list[Values]:
        """Values of the prompts that had any, in order."""
        self._progress.stage(name, len(prompts))
        found = [values for values in self._pieces(name, prompts, work) if values is not None]
        if not found:
            raise ProfilerError(
                f"{name}: none of the {len(prompts)} prompts can be used (the model answers every question wrong); "
                "give prompts without answers, or more of them"
            )
        return found

    def _pieces(
        self, name: str, prompts: Sequence[Prompt], work: Callable[[Prompt], Values | None]
    ) -> Iterator[Values | None]:
        for index, prompt in enumerate(prompts):
            key = f"{name}/{index}/{prompt.name}"
            if key not in self._journal:
                self._journal.put(key, work(prompt))
            yield self._journal[key]
            self._progress.done()

    def _sampler_of(self, model: CausalLM) -> Sampler:
        options = self._options
        return Sampler(
            model,
            self._ops,
            page_size=options.page_size,
            block_size=options.block_size,
            answer_tokens=options.answer_tokens,
        )


def work_file(folder: Path) -> Path:
    """Where an interrupted build of this model is kept."""
    return Path(tempfile.gettempdir()) / f"smartgen-profile-{folder.resolve().name}.jsonl"


def _contents(folder: Path) -> list[list[Any]]:
    """Name, size and time of each of the model's files: other weights are other work."""
    files = sorted(path for path in folder.resolve().iterdir() if path.is_file())
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """About `count` prompts of all kinds."""
    return list(prompts[:: max(1, len(prompts) // count)])


def _plain(options: Options) -> Values:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(options).items()}


def _held_out(method: Method, rows: Sequence[Values]) -> profiles.HeldOut:
    mine = [row for row in rows if row["method"] == method.name]
    if not mine:
        raise ProfilerError("no held-out prompt was judged; ask for at least one")
    kl = mean_of([row["kl"] for row in mine])
    retrieved = [row["retrieved"] for row in mine if row["retrieved"] is not None]
    return profiles.HeldOut(
        selector=method.selector,
        fraction=method.fraction,
        kl=kl.value,
        kl_low=kl.low,
        kl_high=kl.high,
        agreement=sum(row["agreement"] for row in mine) / len(mine),
        retrieval=sum(retrieved) / len(retrieved) if retrieved else None,
    )


def _expected_fetch(steps: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Mean share of the prompt's blocks fetched per step, for steps 1, 2, 3-4, 5-8, 9-16 and so on."""
    ends, shares = [], []
    low, end = 0, 1
    while any(len(one) > low for one in steps):
        values = [share for one in steps for share in one[low:end]]
        ends.append(end)
        shares.append(sum(values) / len(values))
        low, end = end, 2 * end
    return tuple(ends), tuple(shares)
