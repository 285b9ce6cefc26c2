"""Statistics on a real pair: the same prompt gets the same scores however its KV came to be there."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
from smartgen.client import RequestFailed
from smartgen.launch import Role, ServeMode
from smartgen.launch.ports import pick
from smartgen_lab.measure import Prompts, flush_cache

pytestmark = [pytest.mark.sglang, pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE, BLOCK, WINDOW, CHUNK, LAYERS = 16, 32, 32, 256, 30
KV_BYTES_PER_TOKEN = 23_040


@pytest.fixture(scope="module")
def pair(servers):
    prefill = servers.start(Role.PREFILL, ServeMode.LAYERWISE, *options(CHUNK))
    decode = servers.start(Role.DECODE, ServeMode.LAYERWISE, "--smartgen-debug")
    servers.wait(prefill, decode)
    return prefill[1], decode[1]


def options(chunk):
    return (
        *("--smartgen-debug", "--smartgen-statistics"),
        *("--chunked-prefill-size", str(chunk), "--max-total-tokens", "24000"),
    )


@pytest.fixture(scope="module")
def client(servers, pair):
    return servers.client(*pair)


@pytest.fixture(scope="module")
def prompts(model):
    return Prompts(model, seed=31)


def ask(client, prompt, new_tokens=4, statistics=None, cold=True, **more):
    if cold:
        flush_cache(client.prefill_url)
    sampling = {"ignore_eos": True}
    if statistics is not None:
        sampling["custom_params"] = {"smartgen": {"statistics": statistics}}
    answer = client.ask(prompt, max_new_tokens=new_tokens, sampling=sampling, **more)
    assert same_kv(answer)
    assert sent_once(answer, len(prompt))
    if cold:
        assert answer.cached_tokens == 0
    return answer


def report(answer):
    return answer.prefill_meta_info["smartgen"][0]


def scores_of(answer):
    scores = np.array(report(answer)["scores"], dtype=np.float32)
    assert scores.shape == (LAYERS, -(-answer.prompt_tokens // BLOCK))
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1.01)).all()
    return scores


def same_kv(answer):
    return answer.meta_info["smartgen"][0]["kv_digest"] == report(answer)["kv_digest"]


def sent_once(answer, tokens):
    sent = report(answer)
    pages = -(-tokens // PAGE)
    return sent["bytes"]["layerwise"] == pages * PAGE * KV_BYTES_PER_TOKEN and (
        sent["resent_bytes"] == 0
    )


def difference(found, expected):
    """How far scores are apart, and which share of each layer's best quarter is the same."""
    assert found.shape == expected.shape
    best = max(1, found.shape[1] // 4)
    top = [np.argsort(-scores, axis=1, kind="stable")[:, :best] for scores in (found, expected)]
    shared = [len(set(a) & set(b)) / best for a, b in zip(*top, strict=True)]
    return np.abs(found - expected).max(), np.mean(shared)


def assert_alike(found, expected):
    """Equal up to bf16 noise of keys and queries."""
    apart, shared = difference(found, expected)
    assert apart < 0.05
    assert shared > 0.95


@pytest.mark.parametrize("tokens", [1, 15, WINDOW, WINDOW + 1, 300, CHUNK * 2, CHUNK * 2 + 8, 700])
def test_every_prompt_is_scored(client, prompts, tokens):
    answer = ask(client, prompts.make(tokens))
    scores = scores_of(answer)
    assert report(answer)["statistics_s"] > 0
    # The first token draws attention in most layers, as always.
    assert np.median(scores[5:, 0]) > 0.3


@pytest.mark.parametrize("tokens", [40, 512, 690, 704 - 16])
def test_a_prompt_that_is_cached_gets_the_scores_of_a_new_one(client, prompts, tokens):
    prompt = prompts.make(tokens)
    cold = ask(client, prompt)
    again = ask(client, prompt, cold=False)
    assert again.cached_tokens == (tokens - WINDOW) // PAGE * PAGE
    assert_alike(scores_of(again), scores_of(cold))
    assert again.token_ids == cold.token_ids


def test_a_growing_chat_gets_the_scores_of_the_same_text_at_once(client, prompts):
    opening = prompts.make(500)
    answer = ask(client, opening, new_tokens=24)
    grown = [*opening, *answer.token_ids, *prompts.make(60)]
    warm = ask(client, grown, cold=False)
    assert warm.cached_tokens >= 480
    assert_alike(scores_of(warm), scores_of(ask(client, grown)))


def test_they_change_nothing_of_the_answer_and_can_be_switched_off(client, prompts):
    for tokens in (90, 33 * PAGE):
        prompt = prompts.make(tokens)
        on, off = ask(client, prompt, 16), ask(client, prompt, 16, statistics=False)
        assert on.token_ids == off.token_ids
        assert "scores" not in report(off)
        assert "statistics_s" not in report(off)
        # Without them SGLang caches all it can.
        again = ask(client, prompt, statistics=False, cold=False)
        assert again.cached_tokens == (tokens - 1) // PAGE * PAGE


def test_requests_at_once_get_their_own_scores(client, prompts):
    asked = [prompts.make(tokens) for tokens in (130, 420, 60, 600, 33, 270)]
    alone = [scores_of(ask(client, prompt)) for prompt in asked]
    flush_cache(client.prefill_url)
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda prompt: ask(client, prompt, cold=False), asked))
    for answer, expected in zip(together, alone, strict=True):
        assert_alike(scores_of(answer), expected)


def test_an_aborted_prompt_leaves_its_neighbour_alone(client, prompts):
    prompt = prompts.make(700)
    expected = scores_of(ask(client, prompt))
    flush_cache(client.prefill_url)
    with ThreadPoolExecutor(2) as pool:
        doomed = pool.submit(client.ask, prompts.make(3000), max_new_tokens=64, rid="doomed")
        time.sleep(0.5)
        neighbour = pool.submit(ask, client, prompt, cold=False)
        time.sleep(0.2)
        for url in (client.prefill_url, client.decode_url):
            requests.post(f"{url}/abort_request", json={"rid": "doomed"}, timeout=10)
        error = doomed.exception(timeout=60)
    assert error is None or isinstance(error, RequestFailed)
    assert_alike(scores_of(neighbour.result()), expected)


def test_the_chunk_size_does_not_matter(servers, pair, client, prompts):
    asked = [prompts.make(tokens) for tokens in (300, CHUNK * 2 + 10, 700)]
    in_chunks = [scores_of(ask(client, prompt)) for prompt in asked]
    servers.bootstrap_port, *_ = pick(1, taken=[servers.bootstrap_port])
    process, spec = servers.start(Role.PREFILL, ServeMode.LAYERWISE, *options(8192))
    servers.wait((process, spec))
    whole = servers.client(spec, pair[1])
    for prompt, expected in zip(asked, in_chunks, strict=True):
        assert_alike(scores_of(ask(whole, prompt)), expected)
    servers.stop(process)


def test_the_time_they_took_is_counted(pair, client, prompts):
    def count():
        text = requests.get(f"{pair[0].url}/metrics", timeout=10).text
        lines = [line for line in text.splitlines() if "statistics_seconds_count" in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    before = count()
    ask(client, prompts.make(100))
    ask(client, prompts.make(100), statistics=False)
    assert count() == before + 1
