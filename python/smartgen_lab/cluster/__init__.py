"""Real SGLang servers for measurements: on this machine, or on the hosts of a lab.

Everything that must be equal for all modes is said once, in `Ground`.
"""

from smartgen_lab.cluster.ground import Ground
from smartgen_lab.cluster.place import Place, lab_places, local_place, local_places
from smartgen_lab.cluster.servers import PairServers, Servers, aggregated, pair, routed_pair

__all__ = [
    "Ground",
    "PairServers",
    "Place",
    "Servers",
    "aggregated",
    "lab_places",
    "local_place",
    "local_places",
    "pair",
    "routed_pair",
]
