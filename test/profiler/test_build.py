"""Building a profile: whole, interrupted and taken up again, and what is refused before minutes are spent."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smartgen import profile as profiles
from smartgen.profiler import build
from smartgen.profiler.build import Builder
from smartgen.profiler.causal_lm import CausalLM
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.identity import identity_of
from smartgen.profiler.options import Options
from smartgen.profiler.picture import heat_map
from smartgen.profiler.prompts import Prompt, fingerprint
from smartgen.profiler.sample import Sampler

OPTIONS = Options(
    page_size=4,
    block_size=8,
    answer_tokens=5,
    floor_prompts=2,
    on_demand_prompts=2,
    signals=("window-8-max", "window-16-mean"),
    signal_fractions=(0.2,),
    fractions=(0.1, 0.3),
    length_bins=(100,),
    position_bins=8,
    targets=(0.2, 0.5),
    digest="means-4",
)


class Progress:
    """Notes every stage; raises as Ctrl-C does after so many pieces."""

    def __init__(self, pieces: int | None = None) -> None:
        self.stages: list[tuple[str, int]] = []
        self.pieces = 0
        self._most = pieces

    def stage(self, name: str, pieces: int) -> None:
        self.stages.append((name, pieces))

    def done(self) -> None:
        self.pieces += 1
        if self.pieces == self._most:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def train(make_prompt: Callable[..., Prompt]) -> list[Prompt]:
    """The last one asks for what no answer contains."""
    kinds = ((60, "a", None), (90, "b", None), (130, "a", None), (70, "asking", "no such text"))
    return [make_prompt(n, seed=n, kind=kind, answer=answer) for n, kind, answer in kinds]


@pytest.fixture(scope="module", autouse=True)
def held_out(make_prompt: Callable[..., Prompt]) -> Iterator[list[Prompt]]:
    """Short ones in the place of the made ones; one with more to go on than an answer has tokens."""
    prompts = [
        make_prompt(80, seed=1, kind="held", answer="no such text"),
        make_prompt(110, seed=2, kind="held", continuation=[*range(20, 40)]),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "make_prompts", lambda *_: prompts)
        yield prompts


@pytest.fixture(scope="module")
def make_builder(folder: Path, train: list[Prompt]) -> Callable[..., Builder]:
    def make(work: Path, progress: Progress | None = None, **changed: Any) -> Builder:
        arguments: dict[str, Any] = {
            "folder": folder,
            "options": OPTIONS,
            "progress": progress or Progress(),
            "prompts": lambda tokenizer: train,
        }
        return Builder(work=work, **(arguments | changed))

    return make


@pytest.fixture
def builder(make_builder: Callable[..., Builder], tmp_path: Path) -> Callable[..., Builder]:
    return partial(make_builder, tmp_path / "work.jsonl")


@contextmanager
def watched() -> Iterator[list[str]]:
    """Names of prompts, as often as they are prefilled."""
    names: list[str] = []
    real = Sampler.sample

    def sample(self: Sampler, prompt: Prompt, **rest: Any) -> Any:
        names.append(prompt.name)
        return real(self, prompt, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "sample", sample)
        yield names


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A build that nothing interrupted: its profile, what it told, and what it prefilled."""

    profile: profiles.Profile
    stages: list[tuple[str, int]]
    pieces: int
    sampled: list[str]
    work: Path


@pytest.fixture(scope="module")
def whole(make_builder: Callable[..., Builder], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    progress, work = Progress(), tmp_path_factory.mktemp("whole") / "work.jsonl"
    with watched() as sampled:
        profile = make_builder(work, progress).build()
    return Whole(
        profile=profile,
        stages=progress.stages,
        pieces=progress.pieces,
        sampled=sampled,
        work=work,
    )


def test_a_profile_is_whole_and_fits_its_model(
    whole: Whole, folder: Path, tmp_path: Path, train: list[Prompt]
) -> None:
    profile = whole.profile
    path = tmp_path / "profile.json"
    path.write_text(profiles.dump(profile))
    assert profiles.load(path) == profile
    model = CausalLM(folder, torch.bfloat16)
    identity = identity_of(folder, model, 4, 8)
    profiles.check_fits(profiles.load(path), identity)
    assert (identity.layers, identity.heads, identity.kv_heads, identity.head_size) == (3, 4, 2, 16)
    assert identity.dtype == "bfloat16"
    assert identity.chat_template_sha256

    assert profile.calibration is not None
    assert profile.calibration.kinds == {"a": 2, "b": 1}
    assert profile.calibration.prompts == 3
    assert profile.calibration.prompts_sha256 == fingerprint(train)
    assert profile.calibration.scored_tokens == 3 * OPTIONS.answer_tokens
    assert [b.prompts for b in profile.sensitivity.bins] == [2, 1]
    assert profile.sensitivity.fractions == (0.1, 0.3, 1.0)
    assert np.array(profile.sensitivity.bins[0].kl)[:, 0].min() > 0
    np.testing.assert_allclose(np.array(profile.position).sum(axis=1), 1.0, atol=1e-4)
    assert profile.signal.selector in OPTIONS.signals
    assert profile.signal.tried.keys() == set(OPTIONS.signals)
    assert profile.signal.tried[profile.signal.selector] == min(profile.signal.tried.values())
    assert profile.on_demand.step_bins == (1, 2, 4, 8)
    assert all(0 <= share <= 1 for share in profile.on_demand.expected_fetch)
    assert profile.floor is not None
    assert 0 < profile.floor.kl < 1
    assert 0 < len(profile.on_demand.layers) <= 3
    assert [row.fraction for row in profile.held_out] == [0.1, 0.2, 0.3, 0.5]
    kl = [row.kl for row in profile.held_out]
    assert kl[0] > kl[-1]
    assert all(row.retrieval is None for row in profile.held_out)  # full KV is never right here
    assert [(t.fraction, t.below_tokens) for t in profile.targets] == [
        (0.2, 100), (0.5, 100), (0.2, None), (0.5, None),
    ]  # fmt: skip
    assert profile.software["torch"]

    assert whole.stages == [
        ("signals", 4),
        ("layers", 4),
        ("signals within budgets", 4),
        ("fetching", 2),
        ("bf16 floor", 2),
        ("held-out", 2),
    ]
    assert whole.pieces == 18
    assert not whole.work.exists()


@pytest.mark.parametrize("pieces", [1, 4, 10, 13, 16, 18])
def test_an_interrupted_build_goes_on_where_it_stopped(
    builder: Callable[..., Builder], whole: Whole, pieces: int
) -> None:
    progress = Progress()
    with watched() as sampled:
        first = builder(Progress(pieces))
        with pytest.raises(KeyboardInterrupt):
            first.build()
        assert not first.resumed
        second = builder(progress)
        assert second.resumed
        assert profiles.dump(second.build()) == profiles.dump(whole.profile)
    assert sampled == whole.sampled  # no prompt once more
    assert progress.pieces == 18


def test_an_interrupt_in_the_middle_of_a_piece_repeats_that_piece_only(
    builder: Callable[..., Builder],
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = build.Measure.sensitivity, []

    def sensitivity(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(build.Measure, "sensitivity", sensitivity)
    with pytest.raises(KeyboardInterrupt):
        builder().build()
    work = tmp_path / "work.jsonl"
    work.write_bytes(work.read_bytes() + b'["layers/1/')
    assert profiles.dump(builder().build()) == profiles.dump(whole.profile)
    assert len(calls) == 4  # three prompts, one of them twice


@pytest.fixture
def interrupted(builder: Callable[..., Builder]) -> None:
    with pytest.raises(KeyboardInterrupt):
        builder(Progress(4)).build()


@pytest.mark.usefixtures("interrupted")
def test_the_same_again_is_taken_up(builder: Callable[..., Builder]) -> None:
    assert builder().resumed


@pytest.mark.usefixtures("interrupted")
def test_other_options_start_anew(builder: Callable[..., Builder]) -> None:
    assert not builder(options=replace(OPTIONS, fractions=(0.1, 0.4))).resumed


@pytest.mark.usefixtures("interrupted")
def test_other_prompts_start_anew(builder: Callable[..., Builder], train: list[Prompt]) -> None:
    assert not builder(prompts=lambda tokenizer: train[::-1]).resumed


@pytest.mark.usefixtures("interrupted")
def test_another_model_of_the_same_name_starts_anew(
    builder: Callable[..., Builder], make_model: Callable[..., Path], folder: Path
) -> None:
    other = make_model(seed=1)
    assert other.name == folder.name
    assert not builder(folder=other).resumed


def test_prompts_that_do_not_fit_are_refused_before_any_work(
    builder: Callable[..., Builder], train: list[Prompt], make_prompt: Callable[..., Prompt]
) -> None:
    long = make_prompt(508)
    with pytest.raises(ProfilerError, match=f"prompt {long.name} has 508 tokens"):
        builder(prompts=lambda tokenizer: [*train, long])


def test_a_part_without_prompts_is_refused(builder: Callable[..., Builder]) -> None:
    with pytest.raises(ProfilerError, match="no prompts to measure"):
        builder(options=replace(OPTIONS, part=(5, 5)))


def test_layouts_that_no_profile_can_have_are_refused_before_any_work(
    builder: Callable[..., Builder],
) -> None:
    with pytest.raises(ProfilerError, match="block size 6 is no multiple of page size 4"):
        builder(options=replace(OPTIONS, block_size=6))
    with pytest.raises(ProfilerError, match="digest means-8 does not divide blocks of 4 tokens"):
        builder(options=replace(OPTIONS, block_size=4, digest="means-8"))


def test_values_that_no_profile_can_hold_keep_the_work(
    builder: Callable[..., Builder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        build.Measure, "signals", lambda *_: {name: [float("nan")] for name in OPTIONS.signals}
    )
    with pytest.raises(profiles.ProfileError, match=r"signal\.tried.* is nan"):
        builder().build()
    lines = (tmp_path / "work.jsonl").read_text().splitlines()
    assert json.loads(lines[1])[0].startswith("signals/0/")


def test_questions_that_are_all_answered_wrong_leave_nothing_to_measure(
    builder: Callable[..., Builder], train: list[Prompt], held_out: list[Prompt]
) -> None:
    with pytest.raises(ProfilerError, match="signals: none of the 1 prompts can be used"):
        builder(prompts=lambda tokenizer: train[-1:]).build()


def test_the_heat_map_is_a_png_whatever_its_name(profile: profiles.Profile, tmp_path: Path) -> None:
    heat_map(profile, tmp_path / "map.txt")
    assert (tmp_path / "map.txt").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ProfilerError, match=r"missing/map\.png cannot be written"):
        heat_map(profile, tmp_path / "missing" / "map.png")
