"""Hosts on shaped links, on this machine: network namespaces joined by veth pairs and bridges.

A `Topology` is a value, a `Lab` makes it real for the time of a `with` block. Nothing is created
outside the lab's own namespaces, whose names say which process made them, so a crashed run's
leftovers are known for what they are and removed by the next one. Needs root and iproute2.
Latency is not shaped: `tbf` limits rate only, and not every kernel has `netem`.
"""

from smartgen_lab.netns.errors import LabError
from smartgen_lab.netns.lab import Lab
from smartgen_lab.netns.leftovers import remove_leftovers
from smartgen_lab.netns.topology import (
    CONTROL,
    DATA,
    Network,
    Port,
    Shape,
    Topology,
    one_to_one,
)

__all__ = [
    "CONTROL",
    "DATA",
    "Lab",
    "LabError",
    "Network",
    "Port",
    "Shape",
    "Topology",
    "one_to_one",
    "remove_leftovers",
]
