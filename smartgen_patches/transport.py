"""Chooses the transport and prepares the environment that Mooncake reads when it is built.

Runs in the main process before any server process is spawned, so that SGLang's own engine and
ours see the same settings.
"""

import importlib
import logging

from smartgen.config import Protocol, provide_variables, set_variable, variable
from smartgen.transport import TransportError, apply_settings, check_version, detect_protocol
from smartgen.transport import import_failure as explain_import_failure

from smartgen_patches.errors import StartRefused

logger = logging.getLogger(__name__)

CHOSEN = "SMARTGEN_PROTOCOL"


def prepare_transport(wanted: Protocol) -> None:
    """Fix the protocol for this server and its child processes. Raises StartRefused."""
    found = detect_protocol()
    if wanted is Protocol.RDMA and found != "rdma":
        raise StartRefused(
            "--smartgen-protocol rdma: this machine has no RDMA device; use 'auto' or 'tcp'"
        )
    protocol = found if wanted is Protocol.AUTO else wanted.value
    try:
        check_version()
        importlib.import_module("mooncake.engine")
    except TransportError as error:
        raise StartRefused(str(error)) from error
    except ImportError as error:
        raise StartRefused(str(explain_import_failure(error))) from error
    apply_settings(protocol)
    set_variable(CHOSEN, protocol)
    provide_variables({"MOONCAKE_PROTOCOL": protocol})
    if wanted is Protocol.AUTO and protocol == "tcp":
        logger.info(
            "smartgen: no RDMA device here, KV travels over TCP (--smartgen-protocol overrides)"
        )


def chosen_protocol() -> str:
    """What `prepare_transport` chose in the main process."""
    return variable(CHOSEN) or detect_protocol()
