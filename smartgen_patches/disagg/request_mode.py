"""A request's own wish for a transfer mode: `custom_params: {"smartgen": {"mode": "full"}}`.

Both servers get the same body and must come to the same answer, so this is the only reader.
"""

import logging
from typing import Any

from smartgen.core import Mode

logger = logging.getLogger(__name__)

_SERVED = (Mode.FULL, Mode.LAYERWISE)


def requested_mode(req: Any, default: Mode) -> Mode:
    """The mode for `req`; `default` where it says nothing, or nothing that can be served."""
    params = getattr(req.sampling_params, "custom_params", None)
    wish = params.get("smartgen") if isinstance(params, dict) else None
    name = wish.get("mode") if isinstance(wish, dict) else None
    if name is None or default is Mode.FULL:
        # A server that was told to serve by full transfer may have had to.
        return default
    try:
        mode = Mode.parse(str(name))
    except ValueError as error:
        logger.warning("smartgen: request %s: %s; using %s", req.rid, error, default.value)
        return default
    return mode if mode in _SERVED else default
