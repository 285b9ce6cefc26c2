"""`smartgen profile`: build a model's profile, and show one."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from smartgen import profile as profiles
from smartgen.cli.bars import Bars
from smartgen.cli.screen import full_width, notes, results
from smartgen.profiler.errors import ProfilerError
from smartgen.profiler.options import Options

if TYPE_CHECKING:
    from smartgen.profiler.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What the command line says."""

    model: Path
    output: Path
    prompts: Path | None
    page_size: int
    block_size: int
    seed: int
    part: str | None = None


def build(wanted: BuildOptions) -> None:
    """Measure, write the file, show it."""
    # Loads torch and transformers, which `show` does without.
    from smartgen.profiler.build import Builder, work_file

    _writable(wanted.output)
    work = work_file(wanted.model)
    options = Options(
        page_size=wanted.page_size,
        block_size=wanted.block_size,
        seed=wanted.seed,
        part=_part(wanted.part),
    )
    bars = Bars()
    with bars.progress:
        builder = Builder(wanted.model, options, bars, work=work, prompts=_reader(wanted.prompts))
        if builder.resumed:
            notes.print(f"going on with the interrupted run in {work}")
        profile = builder.build()
    wanted.output.write_text(profiles.dump(profile, name=str(wanted.output)))
    _print(profile)
    results.print(str(wanted.output), markup=False)


def _writable(output: Path) -> None:
    """Found out before the minutes of work, not after them."""
    folder = output.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProfilerError(
            f"{folder} cannot be made ({error.strerror}); name another --output"
        ) from error
    if output.is_dir() or not os.access(folder, os.W_OK):
        raise ProfilerError(f"{output} cannot be written; name another --output")


def compare(first: Path, second: Path) -> None:
    """Spearman's correlation of the layers' sensitivity."""
    from smartgen.profiler import fit

    one, other = profiles.load(first), profiles.load(second)
    profiles.check_fits(other, one.identity, name=str(second))
    correlation = fit.ranking_correlation(one.sensitivity, other.sensitivity)
    results.print(f"rank correlation of the layers' sensitivity: {correlation:.3f}")


def show(path: Path, picture: Path | None) -> None:
    """Tables of a profile; `picture` receives the heat map as PNG."""
    profile = profiles.load(path)
    _print(profile)
    if picture is not None:
        from smartgen.profiler.picture import heat_map

        heat_map(profile, picture)
        results.print(str(picture), markup=False)


def _part(text: str | None) -> tuple[int, int]:
    """(k, n) from "K/N"; everything when none is given."""
    if text is None:
        return 1, 1
    first, _, count = text.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise ProfilerError(f"--part {text} is not K/N with 1 <= K <= N, for example 1/2")
    return int(first), int(count)


def _reader(path: Path | None) -> "Callable[[Any], list[Prompt]] | None":
    if path is None:
        return None
    from smartgen.profiler.prompts import read_prompts

    return lambda tokenizer: read_prompts(path, tokenizer)


def _print(profile: profiles.Profile) -> None:
    identity = profile.identity
    results.print(
        f"{identity.model}, {identity.dtype}, pages of {identity.page_size} tokens, blocks of "
        f"{identity.block_size}; blocks ranked by {profile.signal.selector}; fetching layers "
        f"{', '.join(map(str, profile.on_demand.layers))}"
    )
    if profile.floor is not None:
        results.print(
            f"floor of {identity.dtype}: KL {profile.floor.kl:.4f}, agreement {profile.floor.agreement:.1%}"
        )
    for table in (_signals(profile), _layers(profile), _held_out(profile)):
        if table.row_count:
            results.print(full_width(table))


def _signals(profile: profiles.Profile) -> Table:
    table = Table("selector", "KL", title="signals tried, same share of every layer")
    for name, kl in sorted(profile.signal.tried.items(), key=lambda item: item[1]):
        table.add_row(name, f"{kl:.3f}")
    return table


def _layers(profile: profiles.Profile) -> Table:
    """The most sensitive layers, and what each byte target gives them."""
    first = profile.sensitivity.bins[0]
    fractions = profile.sensitivity.fractions[:-1]
    targets = [t for t in profile.targets if t.below_tokens == first.below_tokens]
    table = Table(
        "layer",
        *(f"KL at {fraction:.0%}" for fraction in fractions),
        *(f"blocks at {target.fraction:.0%}" for target in targets),
        title="layers by sensitivity: KL with only that layer restricted, share of its blocks by byte target",
    )
    order = sorted(range(len(first.kl)), key=lambda layer: -sum(first.kl[layer]))
    for layer in order:
        kl = [f"{value:.4f}" for value in first.kl[layer][:-1]]
        table.add_row(str(layer), *kl, *(f"{t.layer_fractions[layer]:.0%}" for t in targets))
    return table


def _held_out(profile: profiles.Profile) -> Table:
    table = Table("bytes", "KL (95 %)", "agreement", "retrieval", title="held-out prompts, static")
    for row in profile.held_out:
        retrieval = "-" if row.retrieval is None else f"{row.retrieval:.0%}"
        kl = f"{row.kl:.3f} ({row.kl_low:.3f}-{row.kl_high:.3f})"
        table.add_row(f"{row.fraction:.0%}", kl, f"{row.agreement:.1%}", retrieval)
    return table
