"""Quality over bytes, one curve per way to choose blocks."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from smartgen.profiler.errors import ProfilerError

from smartgen_lab.accuracy.table import Line

mpl.use("agg")

_LEAST = 1e-7  # nats; a logarithmic axis has no place for nothing lost


def quality_over_bytes(found: Sequence[Line], floor: float | None, path: Path) -> None:
    """Writes a PNG: KL over base + digests + fetched, both logarithmic; the floor is that of the server's type."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for name, curve in _curves(found).items():
        points = sorted(
            (line.base + line.digest + line.fetched, max(line.kl.value, _LEAST)) for line in curve
        )
        style = "o--" if "+" in name else "o-"
        axes.plot(*zip(*points, strict=True), style, label=name, markersize=4, linewidth=1.2)
    if floor is not None:
        axes.axhline(floor, color="grey", linestyle=":", label="floor of the number type")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="share of the prompt's KV bytes moved",
        ylabel="KL from full KV, nats",
    )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, ncols=2)
    axes.grid(alpha=0.3, which="both")
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise ProfilerError(f"{path} cannot be written ({error.strerror})") from error


def _curves(found: Sequence[Line]) -> dict[str, list[Line]]:
    """Methods that differ in their share of bytes only."""
    curves: dict[str, list[Line]] = {}
    for line in found:
        choice, plus, demand = line.method.partition("+")
        curves.setdefault(f"{choice.rpartition('/')[0]}{plus}{demand}", []).append(line)
    return curves
