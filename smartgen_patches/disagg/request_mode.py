"""A request's own wishes: `custom_params: {"smartgen": {"mode": "full", "statistics": false}}`.

Both servers get the same body; only prefill reads them, and tells decode by which mode it sends.
"""

import logging
from typing import Any

from smartgen.core import Mode

logger = logging.getLogger(__name__)

# Why a request goes by full transfer: labels of the fallback counter, but for the first.
CONFIGURED = "configured"  # the server's own mode, so nothing fell back
REQUESTED = "requested"
NOT_SERVED = "mode_not_served"

# By the server's mode. A server that was told to serve by full transfer may have had to.
_SERVED = {Mode.FULL: (Mode.FULL,), Mode.LAYERWISE: (Mode.LAYERWISE, Mode.FULL)}


def why_full(req: Any, default: Mode) -> str | None:
    """Why `req` goes by full transfer; None where it goes by `default`, the server's mode."""
    wish = _wish(req, "mode")
    served = [mode.value for mode in _SERVED[default]]
    if wish is not None and wish not in served:
        logger.warning(
            "smartgen: request %s asks for mode %.80r and goes by full transfer; "
            "this server's modes: %s",
            req.rid,
            wish,
            ", ".join(served),
        )
        return NOT_SERVED
    if default is Mode.FULL:
        return CONFIGURED
    return REQUESTED if wish == Mode.FULL.value else None


def requested_statistics(req: Any, default: bool) -> bool:
    """Whether to take the statistics of `req`; no, where the server takes none."""
    wish = _wish(req, "statistics")
    if wish is None or not default:
        # What a server was not told to do at its start, it has not checked that it can.
        return default
    if not isinstance(wish, bool):
        logger.warning("smartgen: request %s: statistics must be true or false", req.rid)
        return default
    return wish


def _wish(req: Any, name: str) -> object:
    """What the request says under that name; None where it says nothing."""
    params = getattr(req.sampling_params, "custom_params", None)
    wishes = params.get("smartgen") if isinstance(params, dict) else None
    return wishes.get(name) if isinstance(wishes, dict) else wishes
