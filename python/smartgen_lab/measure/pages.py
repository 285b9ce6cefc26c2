"""How many KV tokens a server has free, from its metrics, and how to free those it caches."""

import time

import requests
from prometheus_client.parser import text_string_to_metric_families
from smartgen.client import RequestFailed

_FREE, _CACHED = "sglang:kv_available_tokens", "sglang:kv_evictable_tokens"
# An idle server renews these numbers every 30 s.
REFRESH_S = 35.0


def flush_cache(url: str) -> None:
    """Empty the server's prefix cache, waiting for a health check that may be running."""
    with requests.Session() as session:
        session.trust_env = False
        reply = session.post(url + "/flush_cache", params={"timeout": 30}, timeout=60)
    if reply.status_code != 200:
        raise RequestFailed(url, reply.status_code, reply.text.strip())


def free_tokens(url: str) -> int | None:
    """Free tokens of a server whose prefix cache is empty; None while that is not (yet) so."""
    with requests.Session() as session:
        session.trust_env = False
        text = session.get(url + "/metrics", timeout=10).text
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in (_FREE, _CACHED)
    }
    free = int(values.get(_FREE, 0))
    return free if free > 0 and values.get(_CACHED) == 0 else None


def wait_for_free_tokens(url: str, wanted: int | None = None) -> int | None:
    """The number once it is known, and equals `wanted` if given; else the last one seen.

    The caller has flushed the caches. Waits for the numbers to be renewed at most twice.
    """
    deadline = time.monotonic() + 2 * REFRESH_S
    while True:
        free = free_tokens(url)
        if (free is not None and wanted in (None, free)) or time.monotonic() > deadline:
            return free
        time.sleep(1.0)
