"""Reads SmartGen's counters from a server's `/metrics`."""

import requests
from prometheus_client.parser import text_string_to_metric_families

from smartgen.metrics import catalog

# The Prometheus client appends the suffix to every counter.
KV_BYTES = catalog.SENT_BYTES.name + "_total"


def kv_bytes_by_path(url: str, timeout_s: float = 10.0) -> dict[str, float] | None:
    """KV bytes that the prefill server at `url` has sent, by path; None where it counts none."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            reply = session.get(url + "/metrics", timeout=timeout_s)
        except requests.RequestException:
            return None
    return sum_by_label(reply.text, KV_BYTES, "path") if reply.status_code == 200 else None


def sum_by_label(exposition: str, name: str, label: str) -> dict[str, float] | None:
    """Samples of `name` added up per value of `label`; None where there is no such sample."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == name:
                value = sample.labels.get(label, "")
                sums[value] = sums.get(value, 0.0) + sample.value
    return sums or None
