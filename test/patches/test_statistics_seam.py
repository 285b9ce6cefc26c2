"""Statistics at the seam: which rows of a batch are whose, what the cache must leave, and what ends them."""

from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

PAGE = 16


class Noted:
    """Stands for PromptStatistics and writes down what it is told."""

    def __init__(self, tokens, window=32):
        self.first = max(0, tokens - window)
        self.begun, self.layers = [], []

    def begin(self, start, stop):
        self.begun.append((start, stop))

    def add(self, rows):
        self.layers.append((rows.layer, rows.q[:, 0, 0].tolist(), int(rows.slots[0])))


@pytest.fixture
def context(monkeypatch):
    from smartgen_patches import forward_context

    monkeypatch.setattr(forward_context, "_rows", ())
    monkeypatch.setattr(forward_context, "_pages", ())
    return forward_context


@pytest.fixture
def scheduler():
    import torch

    table = torch.arange(8)[:, None].repeat(1, 1024).to(torch.int32) * 1000
    return SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        token_to_kv_pool_allocator=SimpleNamespace(page_size=PAGE),
    )


def request(prompt, start, stop, row, statistics=None):
    return SimpleNamespace(
        disagg_kv_sender=SimpleNamespace(statistics=statistics, pushes_layers=False),
        pending_bootstrap=False,
        origin_input_ids=[0] * prompt,
        prefix_len=start,
        extend_end=stop,
        start_send_idx=0,
        kv=SimpleNamespace(req_pool_idx=row),
    )


def batch_of(*reqs, counts=None):
    mode = SimpleNamespace(is_extend=lambda: True, is_prebuilt=lambda: False)
    counts = counts or [req.extend_end - req.prefix_len for req in reqs]
    return SimpleNamespace(reqs=list(reqs), extend_lens=counts, forward_mode=mode)


def attend(context, layer, rows):
    """A forward's layer whose queries carry their row's number."""
    import torch

    q = torch.arange(rows, dtype=torch.float32)[:, None, None].expand(rows, 2, 4)
    context.layer_attended(layer, q, torch.zeros(rows, 2), torch.zeros(1, 1, 4), 0.5)


def test_each_request_of_a_batch_gets_its_own_rows(context, scheduler):
    last, first = Noted(300), Noted(600)
    batch = batch_of(
        request(300, 296, 300, row=3, statistics=last),  # its last chunk
        request(40, 0, 40, row=2),  # one that takes none
        request(600, 0, 6, row=5, statistics=first),  # what the budget left for a first chunk
    )
    context.before_run_batch(scheduler, batch)
    attend(context, 7, 50)
    assert last.begun == [(296, 300)]
    assert last.layers == [(7, [0.0, 1.0, 2.0, 3.0], 3000)]
    assert first.begun == [(0, 6)]
    assert first.layers == [(7, [44.0, 45.0, 46.0, 47.0, 48.0, 49.0], 5000)]


def test_the_next_chunk_may_stand_elsewhere_in_its_batch(context, scheduler):
    taken = Noted(600)
    context.before_run_batch(
        scheduler, batch_of(request(600, 0, 256, row=1, statistics=taken), counts=[256])
    )
    context.before_run_batch(
        scheduler,
        batch_of(request(9, 0, 9, row=2), request(600, 256, 260, row=1, statistics=taken)),
    )
    attend(context, 0, 13)
    assert taken.begun == [(0, 256), (256, 260)]
    assert taken.layers == [(0, [9.0, 10.0, 11.0, 12.0], 1000)]


def test_a_decoded_token_in_a_mixed_batch_counts_one_row_and_votes_nowhere(context, scheduler):
    from smartgen.ops import reference
    from smartgen.runtime import PromptStatistics, StatisticsSpec
    from smartgen.select import selector

    spec = StatisticsSpec(
        layers=1,
        page_size=PAGE,
        block_size=PAGE,
        selector=selector("window-16-max"),
        ops=reference,
    )
    finished, running = PromptStatistics(spec, 20), Noted(300)
    batch = batch_of(
        request(300, 298, 300, row=3, statistics=running),
        request(20, 20, 25, row=4, statistics=finished),  # its fifth token; one row
        counts=[2, 1],
    )
    context.before_run_batch(scheduler, batch)
    attend(context, 0, 3)
    assert running.layers == [(0, [0.0, 1.0], 3000)]
    assert finished.scores is None


def test_a_decode_batch_shows_nothing_of_the_forward_before(context, scheduler):
    taken = Noted(40)
    context.before_run_batch(scheduler, batch_of(request(40, 0, 40, row=1, statistics=taken)))
    decode = batch_of()
    decode.forward_mode.is_extend = lambda: False
    context.before_run_batch(scheduler, decode)
    attend(context, 0, 40)
    assert taken.layers == []


def test_an_error_ends_the_statistics_of_one_request_only(context, scheduler):
    good = Noted(40)

    class Broken(Noted):
        def add(self, rows):
            raise RuntimeError("no such block")

    bad = request(40, 0, 40, row=1, statistics=Broken(40))
    failures = []

    def give_up():
        failures.append(bad.disagg_kv_sender.statistics)
        bad.disagg_kv_sender.statistics = None

    bad.disagg_kv_sender.statistics_failed = give_up
    context.before_run_batch(scheduler, batch_of(bad, request(40, 0, 40, row=2, statistics=good)))
    for layer in range(3):
        attend(context, layer, 80)
    assert len(failures) == 1
    assert [layer for layer, _, _ in good.layers] == [0, 1, 2]


# ---- the cached prefix


@pytest.mark.parametrize(
    ("tokens", "statistics", "logprob_start", "limit"),
    [
        (700, True, -1, 668),
        (700, False, -1, 699),
        (32, True, -1, 0),
        (1, True, -1, 0),
        (700, True, 100, 100),  # SGLang's own limit is lower
        (700, None, -1, 699),  # another server's sender, or none at all
    ],
)
def test_the_last_queries_are_never_taken_from_the_cache(tokens, statistics, logprob_start, limit):
    from sglang.srt.managers.schedule_batch import Req

    from smartgen_patches.statistics import around_max_prefix_len

    req = object.__new__(Req)
    req.dllm_config = None
    req.return_logprob, req.logprob_start_len = logprob_start >= 0, logprob_start
    req.disagg_kv_sender = None
    if statistics is not None:
        req.disagg_kv_sender = SimpleNamespace(statistics=Noted(tokens) if statistics else None)
    original = getattr(Req._compute_max_prefix_len, "__wrapped__", Req._compute_max_prefix_len)
    assert around_max_prefix_len(original, req, tokens) == limit


@pytest.mark.parametrize(
    ("prompt", "start", "stop", "statistics", "pages"),
    [
        (704, 672, 704, True, []),  # the prefix ended where it had to: two full pages wait
        (700, 656, 700, True, [43]),  # a partial page is never in the cache
        (700, 656, 700, False, [41, 42, 43]),  # a hit that ended by itself
        (704, 688, 704, False, []),  # SGLang's own limit: one token less than the prompt
        (700, 688, 700, False, [43]),
        (704, 256, 512, True, list(range(16, 32))),  # a middle chunk
        (704, 512, 704, True, list(range(32, 44))),  # a last chunk longer than the window
        (704, 672, 690, True, []),  # the recomputed end in two chunks
        (704, 690, 704, True, []),
    ],
)
def test_pages_that_the_cache_may_hold_already_are_announced_by_the_commit_alone(
    context, scheduler, prompt, start, stop, statistics, pages
):
    req = request(prompt, start, stop, row=0, statistics=Noted(prompt) if statistics else None)
    req.disagg_kv_sender.pushes_layers = True
    chunk = context._chunk_pages(scheduler, req)
    announced = [] if chunk is None else [chunk.start + i for i in range(len(chunk.src_pages))]
    assert announced == pages


# ---- the sender


@pytest.fixture
def sender(monkeypatch):
    from smartgen.metrics import MemorySink

    from smartgen_patches.disagg import sender as module

    made = object.__new__(module.SmartGenKVSender)
    made.bootstrap_room, made.conclude_state = 7, None
    made.kv_mgr = SimpleNamespace(
        settings=SimpleNamespace(mode="layerwise", statistics=True, debug=False),
        sink=MemorySink(),
    )
    made._side = SimpleNamespace(
        statistics_of=Noted,
        abort_room=lambda room: None,
        withdraw=lambda room: None,
        finish=lambda key: None,
    )
    made._key = made._sent = made._statistics = None
    monkeypatch.setattr(module.MooncakeKVSender, "abort", lambda self: None)
    monkeypatch.setattr(module.MooncakeKVSender, "clear", lambda self: None)
    return made


def asked(wish=None):
    params = None if wish is None else {"smartgen": {"statistics": wish}}
    sampling = SimpleNamespace(custom_params=params)
    return SimpleNamespace(rid="r", sampling_params=sampling, origin_input_ids=[0] * 100)


@pytest.mark.parametrize(
    ("on", "wish", "taken"),
    [
        (True, None, True),
        (True, True, True),
        (True, False, False),
        (True, "no", True),
        (False, True, False),
        (False, None, False),
    ],
)
def test_a_request_may_switch_them_off(sender, on, wish, taken):
    sender.kv_mgr.settings.statistics = on
    sender.note_request(asked(wish), None)
    assert (sender.statistics is not None) == taken


@pytest.mark.parametrize("ending", ["abort", "clear", "statistics_failed"])
def test_they_end_with_their_request(sender, ending):
    sender.note_request(asked(), None)
    getattr(sender, ending)()
    assert sender.statistics is None
    assert sender._statistics is None


def test_a_concluded_request_takes_no_more(sender):
    sender.note_request(asked(), None)
    sender.conclude_state = 0
    assert sender.statistics is None


def test_the_report_has_times_and_with_debug_scores(sender):
    import numpy as np
    from smartgen.metrics import catalog

    from smartgen_patches.response import _REPORT

    sender.note_request(asked(), None)
    sender._statistics.seconds = 0.0123456789
    sender._statistics.scores = np.array([[0.123456, -np.inf], [1.0, np.nan]], dtype=np.float32)
    sender._req = req = asked()
    sender._attach_report()
    assert getattr(req, _REPORT) == {"mode": "full", "statistics_s": 0.012346}
    assert sender.kv_mgr.sink.values(catalog.STATISTICS_SECONDS) == (0.0123456789,)

    from smartgen_patches.response import statistics_values

    taken = Noted(100)
    taken.seconds = 0.0
    taken.scores = np.array([[0.123456, -np.inf], [1.0, np.nan]], dtype=np.float32)
    assert statistics_values(taken, scores=True)["scores"] == [[0.1235, None], [1.0, None]]
    taken.scores = None
    assert statistics_values(taken, scores=True)["scores"] is None


# ---- where they are refused


@pytest.mark.parametrize(
    ("role", "portable", "words"),
    [
        ("decode", True, "a prefill server takes them"),
        ("null", True, "a prefill server takes them"),
        ("prefill", False, "not on cuda"),
    ],
)
def test_elsewhere_they_are_refused_in_one_sentence(monkeypatch, capsys, role, portable, words):
    from smartgen.config import Settings

    from smartgen_patches import resolution
    from smartgen_patches.platform_cpu import PortableCpuPlatform

    platform = PortableCpuPlatform() if portable else SimpleNamespace(device_name="cuda")
    monkeypatch.setattr(resolution, "current_platform", platform)
    monkeypatch.setattr(
        resolution, "resolving_view", lambda args: SimpleNamespace(disaggregation_mode=role)
    )
    with pytest.raises(SystemExit):
        resolution._refuse_statistics_elsewhere(None, Settings(statistics=True))
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith("smartgen: --smartgen-statistics: ")
    assert words in said
    assert "leave it out" in said
    resolution._refuse_statistics_elsewhere(None, Settings())


def test_a_model_with_other_attention_layers_is_refused(capsys):
    from smartgen_patches.statistics import prepare_statistics

    runner = SimpleNamespace(attn_backend=object(), dtype=None, model=None)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))
    with pytest.raises(SystemExit):
        prepare_statistics(scheduler)
    assert "do not compute" in capsys.readouterr().err
