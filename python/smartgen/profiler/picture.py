"""A profile as a picture: sensitivity of each layer, and where in the prompt its attention lies."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from smartgen import profile as profiles
from smartgen.profiler.errors import ProfilerError

mpl.use("agg")


def heat_map(profile: profiles.Profile, path: Path) -> None:
    """Writes a PNG. Left: log10 of the KL by layer and share kept; right: log10 of attention by position."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    fractions = profile.sensitivity.fractions[:-1]
    kl = np.mean([np.array(b.kl)[:, :-1] for b in profile.sensitivity.bins], axis=0)
    _map(figure, left, kl, "log10 of KL, only this layer restricted")
    left.set_xticks(range(len(fractions)), [f"{fraction:.0%}" for fraction in fractions])
    left.set_xlabel("share of the layer's blocks kept")
    _map(figure, right, np.array(profile.position), "log10 of the last queries' attention")
    bins = len(profile.position[0])
    right.set_xticks([-0.5, bins / 2 - 0.5, bins - 0.5], ["0", "0.5", "1"])
    right.set_xlabel("relative position in the prompt")
    left.set_ylabel("layer")
    figure.suptitle(f"{profile.identity.model} ({profile.identity.dtype})")
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise ProfilerError(f"{path} cannot be written ({error.strerror})") from error


def _map(figure: Figure, axes: Any, values: np.ndarray, title: str) -> None:
    image = axes.imshow(
        np.log10(np.maximum(values, 1e-6)), aspect="auto", cmap="magma", origin="lower"
    )
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes)
