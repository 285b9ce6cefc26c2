"""From the moments at which tokens arrive to TTFT, TTST and TPOT."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds, counted from the moment the request was sent.

    ttft_s   first token
    ttst_s   second token; None if there was none
    tpot_s   mean time per token after the second; None below three tokens
    total_s  last token
    """

    ttft_s: float
    ttst_s: float | None
    tpot_s: float | None
    total_s: float


def timing(token_times_s: Sequence[float]) -> Timing:
    """`token_times_s`: arrival of each token, at least one, never decreasing."""
    count = len(token_times_s)
    if count == 0:
        raise ValueError("no token arrived")
    second = token_times_s[1] if count > 1 else None
    later = (token_times_s[-1] - token_times_s[1]) / (count - 2) if count > 2 else None
    return Timing(ttft_s=token_times_s[0], ttst_s=second, tpot_s=later, total_s=token_times_s[-1])
