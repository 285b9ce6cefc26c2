import re

import prometheus_client
import pytest
from smartgen.metrics import CATALOG, Kind, MemorySink, NullSink, PrometheusSink, catalog


def test_names_are_unique_prefixed_and_explained():
    names = [metric.name for metric in CATALOG]
    assert len(set(names)) == len(names)
    for metric in CATALOG:
        assert re.fullmatch(r"smartgen:[a-z_]+", metric.name)
        assert metric.meaning.endswith(".")
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)


def test_every_metric_of_the_module_is_in_the_catalogue():
    assert set(CATALOG) == {v for v in vars(catalog).values() if isinstance(v, catalog.Metric)}


def record_everything(sink):
    for metric in CATALOG:
        labels = dict.fromkeys(metric.labels, "x")
        match metric.kind:
            case Kind.COUNTER:
                sink.count(metric, 2, **labels)
                sink.count(metric, **labels)
            case Kind.GAUGE:
                sink.gauge(metric, 7, **labels)
            case Kind.HISTOGRAM:
                sink.observe(metric, 0.3, **labels)


def test_the_null_sink_takes_everything():
    record_everything(NullSink())


def test_the_memory_sink_keeps_everything():
    sink = MemorySink()
    record_everything(sink)
    assert sink.value(catalog.SENT_BYTES, path="x") == 3
    assert sink.value(catalog.LINK_RATE) == 7
    assert sink.values(catalog.TTST_SECONDS) == (0.3,)
    assert sink.value(catalog.SENT_BYTES, path="y") == 0


def test_the_memory_sink_refuses_wrong_labels_and_kinds():
    sink = MemorySink()
    with pytest.raises(ValueError, match="labels"):
        sink.count(catalog.SENT_BYTES, 1)
    with pytest.raises(ValueError, match="not a gauge"):
        sink.gauge(catalog.RESENT_BYTES, 1)
    with pytest.raises(ValueError, match="cannot fall"):
        sink.count(catalog.RESENT_BYTES, -1)


@pytest.mark.parametrize("constant", [{}, {"tp_rank": "0"}])
def test_prometheus_shows_every_metric(constant):
    registry = prometheus_client.CollectorRegistry()
    record_everything(PrometheusSink(constant, registry))
    text = prometheus_client.generate_latest(registry).decode()
    for metric in CATALOG:
        assert metric.name in text
    assert re.search(r"smartgen:sent_bytes_total\{.*path=\"x\".*\} 3.0", text)
    assert ('tp_rank="0"' in text) == bool(constant)
