"""Where SmartGen's metrics of this process go: SGLang's /metrics when that is on, else nowhere."""

import functools

from sglang.srt.runtime_context import get_observability
from smartgen.metrics import NullSink, PrometheusSink, Sink

# Label of bytes that went by SGLang's own transfer, beside the names of our paths.
FULL_PATH = "full"


@functools.cache
def metrics_sink() -> Sink:
    """One sink per process, made on first use: earlier, SGLang has not chosen its directory yet."""
    return PrometheusSink() if get_observability().enable_metrics else NullSink()
