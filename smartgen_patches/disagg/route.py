"""What a prefill server says about itself on its bootstrap port."""

import logging
from typing import Any

import requests
from sglang.srt.disaggregation.common.conn import PrefillServerInfo

logger = logging.getLogger(__name__)

_EVERYTHING = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
_TIMEOUT_S = 5.0


def fetch_prefill_info(bootstrap_addr: str) -> Any | None:
    """SGLang's PrefillServerInfo of that server, unchecked; None when it does not answer."""
    try:
        response = requests.get(f"http://{bootstrap_addr}/route?{_EVERYTHING}", timeout=_TIMEOUT_S)
        response.raise_for_status()
        return PrefillServerInfo(**response.json())
    except (requests.RequestException, TypeError, ValueError) as error:
        logger.error("smartgen: prefill %s does not say what it is: %s", bootstrap_addr, error)
        return None
