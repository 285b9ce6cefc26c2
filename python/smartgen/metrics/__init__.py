"""What is counted, and where it goes."""

from smartgen.metrics.catalog import CATALOG, Kind, Metric
from smartgen.metrics.sinks import MemorySink, NullSink, PrometheusSink, Sink

__all__ = ["CATALOG", "Kind", "MemorySink", "Metric", "NullSink", "PrometheusSink", "Sink"]
