"""What a profile holds.

Plain frozen values, nothing computed but look-ups. KL is always in nats, measured on the output
distribution against full KV in float32; fractions, shares and agreement are 0..1. Shapes are
written [outer][inner] and are checked by `validate.py`, not by the types.
"""

from typing import Final

import msgspec

FORMAT: Final = 1

# Summaries of a block's keys, smallest first: one mean; means of every N tokens; minimum and maximum.
DIGESTS: Final = ("mean", "means-16", "quest", "means-8", "means-4")

Matrix = tuple[tuple[float, ...], ...]


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured; a profile is used only where all of this but the template is the same.

    model                 name the model is known by, as its hub or folder calls it
    config_sha256         of the model's config.json
    dtype                 of the KV cache
    page_size             tokens per page
    block_size            tokens per block, a whole number of pages
    layers, heads, kv_heads, head_size  of the whole model, not of one rank
    chat_template_sha256  of the template that the calibration prompts went through, or None
    """

    model: str
    config_sha256: str
    dtype: str
    page_size: int
    block_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    chat_template_sha256: str | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it was measured on.

    prompts_sha256  of the prompts, so that a later test can prove it uses others
    prompts         how many
    kinds           prompts of each kind, such as "code" or "retrieval"
    scored_tokens   decoded positions that entered the means
    seed            of everything that was drawn
    """

    prompts_sha256: str
    prompts: int
    kinds: dict[str, int]
    scored_tokens: int
    seed: int


class LengthBin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sensitivity of prompts up to a length.

    below_tokens  prompts shorter than this belong here; None in the last bin
    prompts       how many were measured
    kl            [layers][fractions]  mean output KL with only that layer restricted
    spread        [layers][fractions]  standard error of that mean
    """

    below_tokens: int | None
    prompts: int
    kl: Matrix
    spread: Matrix


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the output suffers when one layer keeps only a fraction of its blocks.

    fractions  ascending, the last is 1.0 and costs nothing
    bins       by prompt length, shortest first
    """

    fractions: tuple[float, ...]
    bins: tuple[LengthBin, ...]

    def bin_index(self, tokens: int) -> int:
        """The bin of a prompt of `tokens` tokens."""
        for index, length_bin in enumerate(self.bins):
            if length_bin.below_tokens is None or tokens < length_bin.below_tokens:
                return index
        raise ValueError("the last length bin has an upper end; a valid profile's has none")


class Signal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which selector ranks blocks, as `smartgen.select.selector` names it.

    window  last prompt queries it looks at; 0 when it looks at none
    tried   mean KL of each candidate at one byte target, the chosen one included
    """

    selector: str
    window: int
    tried: dict[str, float]


class OnDemand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How absent blocks are fetched while decoding.

    layers          layers that fetch, ascending
    top_fraction    share of the prompt's blocks that a step may want per layer
    digest          one of DIGESTS
    step_bins       last decode step of each bin, ascending, counted from 1
    expected_fetch  [step_bins]  share of the prompt's blocks fetched per step; more is an alarm.
                    Both are empty when nothing was measured.
    """

    layers: tuple[int, ...]
    top_fraction: float
    digest: str
    step_bins: tuple[int, ...]
    expected_fetch: tuple[float, ...]


class Floor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Full KV in bf16 against full KV in float32: no selection need do better than this.

    agreement  share of positions with the same most likely token
    """

    kl: float
    agreement: float


class HeldOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One result on prompts that the calibration never saw.

    fraction         share of all blocks sent
    kl_low, kl_high  95 % interval of the mean `kl`
    retrieval        share of retrieval prompts still answered right; None where none were run
    """

    selector: str
    fraction: float
    kl: float
    kl_low: float
    kl_high: float
    agreement: float
    retrieval: float | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One byte budget, solved: for people and for servers that solve nothing.

    fraction         share of all blocks
    below_tokens     the length bin it was solved for, as in LengthBin
    layer_fractions  [layers]  share of each layer's blocks
    predicted_kl     sum over layers
    """

    fraction: float
    below_tokens: int | None
    layer_fractions: tuple[float, ...]
    predicted_kl: float


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything known about one model.

    position     [layers][position bins]  mean share of window attention by relative position
    calibration  None in the generic rule, which was measured on no prompt of this model
    floor        None where it was not measured
    software     version of each package that took part
    """

    format: int = FORMAT
    identity: Identity
    calibration: Calibration | None
    sensitivity: Sensitivity
    position: Matrix
    signal: Signal
    on_demand: OnDemand
    floor: Floor | None
    held_out: tuple[HeldOut, ...]
    targets: tuple[Target, ...]
    software: dict[str, str]

    @property
    def measured(self) -> bool:
        """False for the generic rule."""
        return self.calibration is not None
