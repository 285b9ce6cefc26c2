"""What to do with a model that nobody has measured."""

from typing import Final

from smartgen.profile.schema import (
    Identity,
    LengthBin,
    OnDemand,
    Profile,
    Sensitivity,
    Signal,
    Target,
)

# Uniform selection by the last 32 queries on the one model measured so far
# (SmolLM2-135M, prompts of 1k to 4k tokens), the less good of the two signals tried.
_UNIFORM_KL: Final = ((0.05, 0.90), (0.10, 0.40), (0.20, 0.122), (0.30, 0.063), (0.50, 0.014))
_GENEROUS: Final = 0.5


def generic(identity: Identity) -> Profile:
    """A cautious rule for `identity`: half of the blocks, every layer alike, fetching everywhere.

    Its KL figures are another model's, spread evenly over the layers, with a standard error as
    large as they are: they order budgets and promise nothing. `measured` is False; whoever uses
    it says so once.
    """
    layers = identity.layers
    fractions = (*(fraction for fraction, _ in _UNIFORM_KL), 1.0)
    row = (*(kl / layers for _, kl in _UNIFORM_KL), 0.0)
    table = (row,) * layers
    return Profile(
        identity=identity,
        calibration=None,
        sensitivity=Sensitivity(
            fractions=fractions,
            bins=(LengthBin(below_tokens=None, prompts=0, kl=table, spread=table),),
        ),
        position=((1.0,),) * layers,
        signal=Signal(selector="window-16-max", window=16, tried={}),
        on_demand=OnDemand(
            layers=tuple(range(layers)),
            top_fraction=0.1,
            digest="mean",
            step_bins=(),
            expected_fetch=(),
        ),
        floor=None,
        held_out=(),
        targets=(
            Target(
                fraction=_GENEROUS,
                below_tokens=None,
                layer_fractions=(_GENEROUS,) * layers,
                predicted_kl=sum(row[fractions.index(_GENEROUS)] for _ in range(layers)),
            ),
        ),
        software={},
    )
