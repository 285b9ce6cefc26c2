"""How a profile is measured."""

from dataclasses import dataclass, field
from typing import Final

# Questions that the model answers wrong under full KV are dropped, about one in four.
_KINDS: Final = {"needle": 8, "multi-needle": 9, "question": 9, "code": 7, "prose": 7, "summary": 6}
_HELD_OUT: Final = {
    "needle": 4,
    "multi-needle": 4,
    "question": 4,
    "code": 3,
    "prose": 3,
    "summary": 2,
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """page_size, block_size in tokens; counts of made prompts by kind; `block_size` a multiple of `page_size`.

    part         (k, n): only every n-th training prompt from the k-th on, counted from 1
    signals      selectors that compete to rank blocks
    fractions    shares of a layer's blocks that are tried with only that layer restricted
    length_bins  upper ends of the length bins, in tokens; the last bin has none
    on_demand_base, on_demand_top   share sent before, and share that a step may want per layer
    on_demand_first_step            most of the prompt that the first step should fetch in all
    *_prompts    how many of the training prompts a smaller measurement takes
    """

    page_size: int = 16
    block_size: int = 16
    answer_tokens: int = 32
    seed: int = 1
    train: dict[str, int] = field(default_factory=lambda: dict(_KINDS))
    held_out: dict[str, int] = field(default_factory=lambda: dict(_HELD_OUT))
    part: tuple[int, int] = (1, 1)
    floor_prompts: int = 6
    signals: tuple[str, ...] = (
        "window-16-max-next",
        "window-24-max",
        "window-24-max-next",
        "window-24-headmax-next",
        "window-32-max-next",
        "window-32-mean",
        "window-32-mean-next",
        "window-24-max-next+window-32-mean",
    )
    signal_fractions: tuple[float, ...] = (0.1, 0.2)
    signal_prompts: int = 15
    fractions: tuple[float, ...] = (0.03, 0.06, 0.12, 0.2, 0.35, 0.6)
    length_bins: tuple[int, ...] = ()
    position_bins: int = 64
    targets: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5)
    on_demand_base: float = 0.1
    on_demand_top: float = 0.10
    on_demand_first_step: float = 0.009
    on_demand_prompts: int = 10
    digest: str = "means-8"
