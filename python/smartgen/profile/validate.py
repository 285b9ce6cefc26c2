"""Whether the values of a profile make sense: ranges, shapes and order.

Types are msgspec's business. Each refusal gives the path of the value, the value and what is
allowed. The check runs whenever a profile is read or written.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from smartgen.profile.schema import DIGESTS, FORMAT, Identity, Matrix, OnDemand, Profile

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_LAYERS: Final = 1024
_MAX_BINS: Final = 4096
_MAX_KL: Final = 1e4  # nats; two distributions of a model cannot be further apart
_MAX_COUNT: Final = 2**53


class _Refused(Exception):
    """Carries the sentence out of the walk."""


def problem(profile: Profile) -> str | None:
    """None when every value is allowed; else the first that is not, in one sentence."""
    try:
        _within("format", profile.format, FORMAT, FORMAT)
        _identity(profile.identity)
        _calibration(profile)
        _sensitivity(profile)
        _position(profile)
        _signal(profile)
        _on_demand(profile.on_demand, profile.identity)
        _results(profile)
        _targets(profile)
    except _Refused as error:
        return str(error)
    return None


def _identity(identity: Identity) -> None:
    _text("identity.model", identity.model)
    _text("identity.dtype", identity.dtype)
    _sha256("identity.config_sha256", identity.config_sha256)
    if identity.chat_template_sha256 is not None:
        _sha256("identity.chat_template_sha256", identity.chat_template_sha256)
    for name, high in (
        ("page_size", 65536),
        ("block_size", 65536),
        ("layers", _MAX_LAYERS),
        ("heads", 4096),
        ("kv_heads", 4096),
        ("head_size", 65536),
    ):
        _within(f"identity.{name}", getattr(identity, name), 1, high)
    _multiple("identity.block_size", identity.block_size, "page_size", identity.page_size)
    _multiple("identity.heads", identity.heads, "kv_heads", identity.kv_heads)


def _calibration(profile: Profile) -> None:
    calibration = profile.calibration
    if calibration is None:
        return
    _sha256("calibration.prompts_sha256", calibration.prompts_sha256)
    _within("calibration.prompts", calibration.prompts, 1, _MAX_COUNT)
    _within("calibration.scored_tokens", calibration.scored_tokens, 1, _MAX_COUNT)
    _within("calibration.seed", calibration.seed, 0, 2**64 - 1)
    for kind, prompts in calibration.kinds.items():
        _within(f"calibration.kinds[{kind!r}]", prompts, 0, _MAX_COUNT)


def _sensitivity(profile: Profile) -> None:
    sensitivity, layers = profile.sensitivity, profile.identity.layers
    fractions = sensitivity.fractions
    _length("sensitivity.fractions", fractions, 2, 64)
    _each("sensitivity.fractions", fractions, 1e-6, 1.0)
    _ascending("sensitivity.fractions", fractions)
    _within("sensitivity.fractions[-1]", fractions[-1], 1.0, 1.0)
    _length("sensitivity.bins", sensitivity.bins, 1, 64)
    ends = [length_bin.below_tokens for length_bin in sensitivity.bins]
    if ends[-1] is not None or None in ends[:-1]:
        raise _Refused(
            f"sensitivity.bins have below_tokens {_shown(ends)}, must be null in the last only"
        )
    _ascending("sensitivity.bins.below_tokens", [end for end in ends if end is not None])
    for index, length_bin in enumerate(sensitivity.bins):
        path = f"sensitivity.bins[{index}]"
        if length_bin.below_tokens is not None:
            _within(f"{path}.below_tokens", length_bin.below_tokens, 1, _MAX_COUNT)
        _within(f"{path}.prompts", length_bin.prompts, 0, _MAX_COUNT)
        _matrix(f"{path}.kl", length_bin.kl, layers, len(fractions), _MAX_KL)
        _matrix(f"{path}.spread", length_bin.spread, layers, len(fractions), _MAX_KL)
        for layer, row in enumerate(length_bin.kl):
            _within(f"{path}.kl[{layer}][-1]", row[-1], 0.0, 0.0)


def _position(profile: Profile) -> None:
    _length("position", profile.position, profile.identity.layers, profile.identity.layers)
    _length("position[0]", profile.position[0], 1, _MAX_BINS)
    _matrix("position", profile.position, profile.identity.layers, len(profile.position[0]), 1.0)


def _signal(profile: Profile) -> None:
    _text("signal.selector", profile.signal.selector)
    _within("signal.window", profile.signal.window, 0, 1024)
    for name, kl in profile.signal.tried.items():
        _within(f"signal.tried[{name!r}]", kl, 0.0, _MAX_KL)


def _on_demand(on_demand: OnDemand, identity: Identity) -> None:
    _each("on_demand.layers", on_demand.layers, 0, identity.layers - 1)
    _ascending("on_demand.layers", on_demand.layers)
    _within("on_demand.top_fraction", on_demand.top_fraction, 0.0, 1.0)
    if on_demand.digest not in DIGESTS:
        raise _Refused(
            f"on_demand.digest is {on_demand.digest!r}, must be one of {', '.join(DIGESTS)}"
        )
    _, _, part = on_demand.digest.partition("means-")
    if part:
        _multiple("identity.block_size", identity.block_size, "on_demand.digest's", int(part))
    _each("on_demand.step_bins", on_demand.step_bins, 1, _MAX_COUNT)
    _ascending("on_demand.step_bins", on_demand.step_bins)
    bins = len(on_demand.step_bins)
    _length("on_demand.expected_fetch", on_demand.expected_fetch, bins, bins)
    _each("on_demand.expected_fetch", on_demand.expected_fetch, 0.0, 1.0)


def _results(profile: Profile) -> None:
    if profile.floor is not None:
        _within("floor.kl", profile.floor.kl, 0.0, _MAX_KL)
        _within("floor.agreement", profile.floor.agreement, 0.0, 1.0)
    for index, row in enumerate(profile.held_out):
        path = f"held_out[{index}]"
        _text(f"{path}.selector", row.selector)
        _within(f"{path}.fraction", row.fraction, 0.0, 1.0)
        _within(f"{path}.kl", row.kl, 0.0, _MAX_KL)
        _within(f"{path}.kl_low", row.kl_low, 0.0, row.kl)
        _within(f"{path}.kl_high", row.kl_high, row.kl, _MAX_KL)
        _within(f"{path}.agreement", row.agreement, 0.0, 1.0)
        if row.retrieval is not None:
            _within(f"{path}.retrieval", row.retrieval, 0.0, 1.0)


def _targets(profile: Profile) -> None:
    layers = profile.identity.layers
    ends = [length_bin.below_tokens for length_bin in profile.sensitivity.bins]
    for index, target in enumerate(profile.targets):
        path = f"targets[{index}]"
        _within(f"{path}.fraction", target.fraction, 0.0, 1.0)
        if target.below_tokens not in ends:
            raise _Refused(
                f"{path}.below_tokens is {_shown([target.below_tokens])}, "
                f"must be one of sensitivity.bins: {_shown(ends)}"
            )
        _length(f"{path}.layer_fractions", target.layer_fractions, layers, layers)
        _each(f"{path}.layer_fractions", target.layer_fractions, 0.0, 1.0)
        _within(f"{path}.predicted_kl", target.predicted_kl, 0.0, _MAX_KL)


def _within(path: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        allowed = f"{low}" if low == high else f"{low}..{high}"
        raise _Refused(f"{path} is {value}, must be {allowed}")


def _each(path: str, values: Iterable[float], low: float, high: float) -> None:
    for index, value in enumerate(values):
        _within(f"{path}[{index}]", value, low, high)


def _length(path: str, values: Sequence[object], low: int, high: int) -> None:
    if not low <= len(values) <= high:
        allowed = f"{low}" if low == high else f"{low}..{high}"
        raise _Refused(f"{path} has {len(values)} entries, must have {allowed}")


def _matrix(path: str, rows: Matrix, height: int, width: int, high: float) -> None:
    _length(path, rows, height, height)
    for index, row in enumerate(rows):
        _length(f"{path}[{index}]", row, width, width)
        _each(f"{path}[{index}]", row, 0.0, high)


def _ascending(path: str, values: Sequence[float]) -> None:
    for before, after in pairwise(values):
        if not before < after:
            raise _Refused(f"{path} has {after} after {before}, must ascend")


def _multiple(path: str, value: int, name: str, unit: int) -> None:
    if value % unit:
        raise _Refused(f"{path} is {value}, must be a multiple of {name} {unit}")


def _text(path: str, value: str) -> None:
    if not 1 <= len(value) <= 512:
        raise _Refused(f"{path} has {len(value)} characters, must have 1..512")


def _sha256(path: str, value: str) -> None:
    if not _SHA256.fullmatch(value):
        raise _Refused(f"{path} is {value[:80]!r}, must be 64 lower-case hexadecimal digits")


def _shown(ends: Iterable[int | None]) -> str:
    return ", ".join("null" if end is None else str(end) for end in ends)
