"""What moves bytes: the Transport protocol, Mooncake, and a loopback for tests.

Mooncake itself is imported when a MooncakeTransport is built, not before.
"""

from smartgen.transport.base import Completion, ErrorKind, Transport, TransportError
from smartgen.transport.loopback import LoopbackTransport
from smartgen.transport.mooncake import (
    MooncakeTransport,
    apply_settings,
    check_version,
    detect_protocol,
    import_failure,
)

__all__ = [
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
]
