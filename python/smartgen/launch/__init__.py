"""Starts and supervises SGLang servers and their router as separate processes.

Specs are values (`server.py`), `Pair` runs them, `checks.py` and `ports.py` fail early. Used by
the command line and by instruments that run servers in network namespaces.
"""

from smartgen.launch.errors import CheckFailed, LaunchError, ProcessDied, StartTimeout
from smartgen.launch.local import LocalOptions, plan_local_pair
from smartgen.launch.pair import Pair, PairSpec
from smartgen.launch.process import Process, answers, wait_until_healthy
from smartgen.launch.server import (
    PATIENT_ROUTER,
    Role,
    RouterSpec,
    ServeMode,
    ServerSpec,
    base_url,
    reachable,
)

__all__ = [
    "PATIENT_ROUTER",
    "CheckFailed",
    "LaunchError",
    "LocalOptions",
    "Pair",
    "PairSpec",
    "Process",
    "ProcessDied",
    "Role",
    "RouterSpec",
    "ServeMode",
    "ServerSpec",
    "StartTimeout",
    "answers",
    "base_url",
    "plan_local_pair",
    "reachable",
    "wait_until_healthy",
]
