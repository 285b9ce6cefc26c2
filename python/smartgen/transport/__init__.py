"""What moves bytes: the Transport protocol, Mooncake, and a loopback for tests.

Mooncake itself is imported when a MooncakeTransport is built, not before.
"""

from smartgen.transport.base import Completion, ErrorKind, Transport, TransportError
from smartgen.transport.loopback import LoopbackTransport
from smartgen.transport.mooncake import (
    QUEUE_LIMITS,
    SYSTEM_LIBRARIES,
    MooncakeTransport,
    apply_settings,
    check_version,
    detect_protocol,
    import_failure,
    rdma_devices,
)

__all__ = [
    "QUEUE_LIMITS",
    "SYSTEM_LIBRARIES",
    "Completion",
    "ErrorKind",
    "LoopbackTransport",
    "MooncakeTransport",
    "Transport",
    "TransportError",
    "apply_settings",
    "check_version",
    "detect_protocol",
    "import_failure",
    "rdma_devices",
]
