"""What all modes of one comparison share, stock included."""

from dataclasses import dataclass, field
from pathlib import Path

from smartgen.transport import QUEUE_LIMITS


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Options and environment of every server of a measurement.

    threads             OpenMP threads of each server
    transfer_timeout_s  Mooncake's limit for one write; must cover KV / rate three times over
    extra               further options, as SGLang's command line takes them
    """

    model: Path
    chunk_tokens: int
    page_tokens: int = 16
    threads: int = 1
    transfer_timeout_s: int = 180
    extra: tuple[str, ...] = field(default=())

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *("--page-size", str(self.page_tokens)),
            *("--chunked-prefill-size", str(self.chunk_tokens)),
            *("--max-prefill-tokens", str(max(self.chunk_tokens, 16384))),
            *self.extra,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OMP_NUM_THREADS": str(self.threads),
            "MC_TRANSFER_TIMEOUT": str(self.transfer_timeout_s),
            "MC_TCP_PROGRESS_TIMEOUT_SEC": str(self.transfer_timeout_s),
            "MC_TCP_STATUS_TIMEOUT_SEC": str(self.transfer_timeout_s),
            **QUEUE_LIMITS,
            # No token of a measurement may come from, or go to, the network outside.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }
