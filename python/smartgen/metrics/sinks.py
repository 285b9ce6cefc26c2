"""Where metrics go: nowhere, a dict for tests, or Prometheus.

A sink is called from agent threads; it must not block and must not raise for a catalogued metric
with its own labels.
"""

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from smartgen.metrics.catalog import CATALOG, Kind, Metric


class Sink(Protocol):
    def count(self, metric: Metric, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one value to a histogram."""


class NullSink:
    def count(self, metric: Metric, value: float = 1, **labels: str) -> None:
        return None

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        return None

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        return None


class MemorySink:
    """Keeps everything; refuses what the catalogue does not know."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, tuple[str, ...]], float] = {}
        self._observed: dict[tuple[str, tuple[str, ...]], list[float]] = {}

    def count(self, metric: Metric, value: float = 1, **labels: str) -> None:
        key = _key(metric, Kind.COUNTER, labels)
        if value < 0:
            raise ValueError(f"{metric.name} cannot fall")
        with self._lock:
            self._sums[key] = self._sums.get(key, 0.0) + value

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        key = _key(metric, Kind.GAUGE, labels)
        with self._lock:
            self._sums[key] = value

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        key = _key(metric, Kind.HISTOGRAM, labels)
        with self._lock:
            self._observed.setdefault(key, []).append(value)

    def value(self, metric: Metric, **labels: str) -> float:
        """A counter or gauge; 0 when never recorded."""
        with self._lock:
            return self._sums.get(_key(metric, metric.kind, labels), 0.0)

    def values(self, metric: Metric, **labels: str) -> tuple[float, ...]:
        """What a histogram saw, in order."""
        with self._lock:
            return tuple(self._observed.get(_key(metric, Kind.HISTOGRAM, labels), ()))


class PrometheusSink:
    """Metrics of this process in `prometheus_client`, imported here and not with this module:
    an import before the host has set its multiprocess directory would break its /metrics.

    constant   labels every metric carries, with their values for this process
    registry   None for the client's default registry
    """

    def __init__(self, constant: Mapping[str, str] | None = None, registry: Any = None) -> None:
        import prometheus_client

        self._constant = dict(constant or {})
        chosen = prometheus_client.REGISTRY if registry is None else registry
        self._metrics: dict[str, Any] = {}
        for metric in CATALOG:
            names = (*self._constant, *metric.labels)
            if metric.kind is Kind.COUNTER:
                made: Any = prometheus_client.Counter(
                    metric.name, metric.meaning, names, registry=chosen
                )
            elif metric.kind is Kind.GAUGE:
                made = prometheus_client.Gauge(
                    metric.name,
                    metric.meaning,
                    names,
                    registry=chosen,
                    multiprocess_mode="mostrecent",
                )
            else:
                made = prometheus_client.Histogram(
                    metric.name, metric.meaning, names, registry=chosen, buckets=metric.buckets
                )
            self._metrics[metric.name] = made

    def count(self, metric: Metric, value: float = 1, **labels: str) -> None:
        self._of(metric, labels).inc(value)

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        self._of(metric, labels).set(value)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        self._of(metric, labels).observe(value)

    def _of(self, metric: Metric, labels: Mapping[str, str]) -> Any:
        made = self._metrics[metric.name]
        every = {**self._constant, **labels}
        return made.labels(**every) if every else made


def _key(metric: Metric, kind: Kind, labels: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    if metric not in CATALOG or metric.kind is not kind or set(labels) != set(metric.labels):
        raise ValueError(f"{metric.name}: not a {kind.value} with labels {sorted(labels)}")
    return metric.name, tuple(labels[name] for name in metric.labels)
