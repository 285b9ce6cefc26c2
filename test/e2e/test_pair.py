"""One layer-wise pair with small chunks: what lands, what is reported, what is given back."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from smartgen.client import RequestFailed
from smartgen.launch import Role, ServeMode

pytestmark = [pytest.mark.sglang, pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = 16
KV_BYTES_PER_TOKEN = 23_040
VOCABULARY = range(1000, 40000)


@pytest.fixture(scope="module")
def pair(servers):
    more = ("--smartgen-debug", "--chunked-prefill-size", "512", "--max-total-tokens", "24000")
    started = [
        servers.start(role, ServeMode.LAYERWISE, *more) for role in (Role.PREFILL, Role.DECODE)
    ]
    servers.wait(*started)
    return started[0][1], started[1][1]


@pytest.fixture(scope="module")
def client(servers, pair):
    return servers.client(*pair)


@pytest.fixture(autouse=True)
def nothing_left_behind(pair):
    """Every test gives back all pages on both servers, whatever it did to them."""
    yield
    for spec in pair:
        wait_for_all_pages(spec)


def prompt(tokens, seed):
    return random.Random(seed).choices(VOCABULARY, k=tokens)


def metric(spec, name):
    """Sum of one series over its labels, 0 where it does not exist yet."""
    text = requests.get(f"{spec.url}/metrics", timeout=10).text
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((name + "{", name + " "))
    ]
    return sum(values)


def state(spec):
    (info,) = requests.get(f"{spec.url}/server_info", timeout=10).json()["internal_states"]
    return info["smartgen"]


def wait_for_all_pages(spec, within_s=20.0):
    requests.post(f"{spec.url}/flush_cache", timeout=10)
    deadline = time.monotonic() + within_s
    while (now := state(spec))["free_tokens"] != now["total_tokens"]:
        assert time.monotonic() < deadline, f"{spec.name} keeps pages: {now}"
        requests.post(f"{spec.url}/flush_cache", timeout=10)
        time.sleep(0.25)


def same_kv(answer):
    ours = answer.meta_info["smartgen"][0]["kv_digest"]
    theirs = answer.prefill_meta_info["smartgen"][0]["kv_digest"]
    assert len(ours) == 30
    return ours == theirs


@pytest.mark.parametrize("tokens", [1, 5, PAGE - 1, PAGE, PAGE + 1, 511, 512, 513, 1500, 3000])
def test_every_layer_lands_whole_and_in_place(client, tokens):
    answer = client.ask(prompt(tokens, tokens), max_new_tokens=3, sampling={"ignore_eos": True})
    assert answer.meta_info["completion_tokens"] == 3
    assert same_kv(answer)
    report = answer.prefill_meta_info["smartgen"][0]
    pages = -(-tokens // PAGE)
    assert report["bytes"]["layerwise"] == pages * PAGE * KV_BYTES_PER_TOKEN
    assert report["resent_bytes"] == 0
    assert answer.meta_info["smartgen"][0]["resident"] == pages * 30


def test_one_output_token(client):
    answer = client.ask(prompt(40, 1), max_new_tokens=1)
    assert answer.meta_info["completion_tokens"] == 1
    assert "ttst_s" not in answer.meta_info["smartgen"][0]


def test_time_to_second_token_is_reported_and_fits_the_clients_clock(client):
    answer = client.ask(prompt(200, 2), max_new_tokens=6, sampling={"ignore_eos": True})
    seen = answer.timing.ttst_s
    assert 0 < answer.meta_info["smartgen"][0]["ttst_s"] <= seen


def test_cached_prefixes_are_sent_as_well(client):
    first = prompt(700, 3)
    client.ask(first, max_new_tokens=2)
    again = client.ask(first, max_new_tokens=2)
    grown = client.ask(first + prompt(300, 4), max_new_tokens=2)
    assert again.cached_tokens >= 688
    assert grown.cached_tokens >= 688
    assert same_kv(again)
    assert same_kv(grown)


def test_requests_at_once_with_equal_prefixes_do_not_mix(client):
    shared = prompt(400, 5)

    def one(index):
        return client.ask(shared + prompt(50 + 90 * (index % 3), index), max_new_tokens=4)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(12)))
    assert all(same_kv(answer) for answer in answers)


@pytest.mark.parametrize(
    ("wish", "reason"), [("full", "requested"), ("selective", "mode_not_served")]
)
def test_a_request_may_go_by_full_transfer(client, pair, wish, reason):
    before = metric(pair[0], "smartgen:fallbacks_total")
    answer = client.ask(
        prompt(600, 6),
        max_new_tokens=2,
        sampling={"custom_params": {"smartgen": {"mode": wish}}},
    )
    assert answer.prefill_meta_info["smartgen"][0]["mode"] == "full"
    assert answer.meta_info["smartgen"][0]["fallback"] == reason
    assert same_kv(answer)
    assert metric(pair[0], "smartgen:fallbacks_total") == before + 1


def test_bytes_are_counted_on_prefill(client, pair):
    before = metric(pair[0], "smartgen:sent_bytes_total")
    client.ask(prompt(PAGE * 4, 7), max_new_tokens=2)
    sent = metric(pair[0], "smartgen:sent_bytes_total") - before
    kv = PAGE * 4 * KV_BYTES_PER_TOKEN
    assert kv < sent < kv + 16_384  # and the request's metadata row


def test_a_prompt_beyond_the_context_is_refused_with_400(pair, client):
    with pytest.raises(RequestFailed) as refused:
        client.ask(prompt(9000, 8), max_new_tokens=2)
    assert refused.value.status == 400


def test_aborts_at_any_moment_give_everything_back(pair, client):
    """Clients that hang up before, during and after the transfer."""
    for delay in (0.0, 0.05, 0.2, 0.6, 1.2):
        with ThreadPoolExecutor(2) as pool:
            rid = f"abort-{delay}"
            asked = pool.submit(
                client.ask,
                prompt(2500, int(delay * 100)),
                max_new_tokens=64,
                sampling={"ignore_eos": True},
                rid=rid,
            )
            time.sleep(delay)
            for spec in pair:
                requests.post(f"{spec.url}/abort_request", json={"rid": rid}, timeout=10)
            error = asked.exception(timeout=60)
            # What SGLang answers depends on the moment; that it answers is what counts.
            assert error is None or isinstance(error, RequestFailed)
    neighbour = client.ask(prompt(700, 99), max_new_tokens=4)
    assert same_kv(neighbour)


def test_an_abort_leaves_its_neighbours_alone(pair, client):
    answers = []
    threads = [
        threading.Thread(
            target=lambda seed=seed: answers.append(
                client.ask(prompt(900, seed), max_new_tokens=8, rid=f"n-{seed}")
            )
        )
        for seed in (201, 202)
    ]
    doomed = threading.Thread(target=lambda: _swallow(client, prompt(2000, 203), "doomed"))
    for thread in (*threads, doomed):
        thread.start()
    time.sleep(0.5)
    for spec in pair:
        requests.post(f"{spec.url}/abort_request", json={"rid": "doomed"}, timeout=10)
    for thread in (*threads, doomed):
        thread.join(timeout=120)
    assert len(answers) == 2
    assert all(same_kv(answer) for answer in answers)


def _swallow(client, tokens, rid):
    with contextlib.suppress(RequestFailed):
        client.ask(tokens, max_new_tokens=64, rid=rid)


def test_health_checks_pass_without_a_trace(pair):
    before = [state(spec)["open"] for spec in pair]
    for spec in pair:
        assert requests.get(f"{spec.url}/health_generate", timeout=30).status_code == 200
    assert [state(spec)["open"] for spec in pair] == before == [0, 0]
