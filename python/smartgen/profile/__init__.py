"""The model profile: what was measured about one model, as data.

Owns the schema, its validation, the file format and the search for a shipped profile. It
measures nothing and decides nothing: `smartgen.profiler` writes profiles, `smartgen.select` reads
them. Every refusal is a ProfileError that names the file, the cause and the remedy.
"""

from smartgen.profile.errors import ProfileError
from smartgen.profile.generic import generic
from smartgen.profile.schema import (
    DIGESTS,
    FORMAT,
    Calibration,
    Floor,
    HeldOut,
    Identity,
    LengthBin,
    OnDemand,
    Profile,
    Sensitivity,
    Signal,
    Target,
)
from smartgen.profile.store import MAX_BYTES, check_fits, dump, load, shipped

__all__ = [
    "DIGESTS",
    "FORMAT",
    "MAX_BYTES",
    "Calibration",
    "Floor",
    "HeldOut",
    "Identity",
    "LengthBin",
    "OnDemand",
    "Profile",
    "ProfileError",
    "Sensitivity",
    "Signal",
    "Target",
    "check_fits",
    "dump",
    "generic",
    "load",
    "shipped",
]
