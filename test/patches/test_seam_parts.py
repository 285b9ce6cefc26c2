"""Parts of the seam that need no server: rooms and aborts, peers, wishes, pages of a chunk, checksums."""

import ctypes
import os
import time
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

ROOM = 77


class FakeAgent:
    def __init__(self):
        self.posts = []

    def open(self, key, destination, src_entries):
        self.posts.append(("open", key))

    def abort(self, key, reason):
        self.posts.append(("abort", key))

    def chunk_committed(self, key, start, pages, last):
        self.posts.append(("commit", start, pages.tolist(), last))

    def aux_ready(self, key, writes):
        self.posts.append(("aux", writes))


class FakeManager:
    """What PrefillSide uses of SGLang's manager, for one room with one decode server."""

    def __init__(self, mode):
        from smartgen.core import Identity
        from smartgen.metrics import MemorySink

        self.identity = Identity(
            product_version="1",
            wire_version=1,
            mode=mode,
            page_size=16,
            model="m",
            dtype="bfloat16",
            layers=1,
            page_bytes=(64, 64),
        )
        self.settings = SimpleNamespace(mode=mode, write_deadline_s=15.0, debug=False)
        self.sink = MemorySink()
        self.kv_args = SimpleNamespace(
            kv_data_ptrs=[1000, 2000], aux_data_ptrs=[50], aux_item_lens=[8]
        )
        info = SimpleNamespace(
            is_dummy=False,
            mooncake_session_id="s",
            endpoint="10.0.0.2",
            dst_port=9,
            dst_kv_indices=np.arange(4, dtype=np.int32),
            decode_prefix_len=0,
            dst_aux_index=3,
        )
        self.transfer_infos = {ROOM: {"s": info}}
        self.decode_kv_args_table = {
            "s": SimpleNamespace(dst_kv_ptrs=[3000, 4000], dst_aux_ptrs=[60])
        }
        self.request_status = {ROOM: 2}
        self._staging_outstanding = {}
        self.acked, self.concluded, self.told = [], [], []

    def _maybe_ack_drained_abort(self, room):
        self.acked.append(room)

    def conclude_transfer(self, *, bootstrap_room, status, targets):
        self.concluded.append((bootstrap_room, status, dict(self._staging_outstanding)))

    def tell(self, endpoint, frames):
        self.told.append((endpoint, frames))


@pytest.fixture
def side(monkeypatch):
    from smartgen.core import Mode

    from smartgen_patches.disagg.prefill_side import PrefillSide

    monkeypatch.setattr(PrefillSide, "_start_agent", lambda self: FakeAgent())
    return PrefillSide(FakeManager(Mode.LAYERWISE))


def offer(side, epoch=1):
    """Decode's metadata for the room, as the control thread sees it."""
    from smartgen.core import Mode, RequestKey
    from smartgen.wire import Open, encode

    side._peers.registered("s", ("10.0.0.2", 9), side._manager.identity)
    key = RequestKey(ROOM, epoch)
    frames = [str(ROOM).encode(), b"10.0.0.2", b"9", b"s", *[b""] * 6]
    assert side.on_message([*frames, encode(Open.of(key, Mode.LAYERWISE, 4))]) is False
    return key


def opened(side, pages=4, wish=None):
    from smartgen_patches.disagg.request_mode import why_full

    params = None if wish is None else {"smartgen": {"mode": wish}}
    return side.open(ROOM, pages, why_full(request(params), side._manager.settings.mode))


def request(custom_params):
    return SimpleNamespace(rid="r", sampling_params=SimpleNamespace(custom_params=custom_params))


def test_an_offered_room_opens_and_holds_the_peers_pages(side):
    key = offer(side)
    assert opened(side) == key
    assert side.agent.posts == [("open", key)]
    assert side._manager._staging_outstanding == {ROOM: 1}


def test_an_abort_before_the_request_starts_leaves_nothing_to_open(side):
    offer(side)
    side.abort_room(ROOM)
    assert opened(side) is None
    assert side.agent.posts == []
    assert side._manager._staging_outstanding == {}


def test_an_abort_after_it_is_posted_behind_the_opening(side):
    key = offer(side)
    opened(side)
    side.abort_room(ROOM)
    assert side.agent.posts == [("open", key), ("abort", key)]
    assert side._manager._staging_outstanding == {ROOM: 1}
    side.drained(key)
    assert side._manager._staging_outstanding == {}
    assert side._manager.acked == [ROOM]
    assert side.open_count() == 0


def test_a_late_drain_of_an_earlier_attempt_does_not_free_the_rooms_new_pages(side):
    first = offer(side, epoch=1)
    opened(side)
    side.drained(first)
    offer(side, epoch=2)
    opened(side)
    side.drained(first)
    assert side._manager._staging_outstanding == {ROOM: 1}
    assert side.open_count() == 1


def test_success_follows_delivery_with_nothing_outstanding(side):
    key = offer(side)
    opened(side)
    report = object()
    side.delivered(key, report)
    ((room, _, outstanding),) = side._manager.concluded
    assert (room, outstanding) == (ROOM, {})
    assert side.finish(key) is report
    assert side.open_count() == 0


def test_a_transfer_sglang_is_done_with_is_aborted(side):
    key = offer(side)
    opened(side)
    assert side.finish(key) is None
    assert side.agent.posts[-1] == ("abort", key)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"decode_prefix_len": 16}, "decode_prefix"),
        ({"dst_kv_indices": np.arange(3, dtype=np.int32)}, "fewer_destination_pages"),
    ],
)
def test_what_cannot_go_layer_wise_falls_back_with_a_counted_reason(side, change, reason):
    from smartgen.metrics import catalog
    from smartgen.wire import Fallback, unpack

    offer(side)
    for name, value in change.items():
        setattr(side._manager.transfer_infos[ROOM]["s"], name, value)
    assert opened(side) is None
    ((_, frames),) = side._manager.told
    (note,) = unpack(frames)
    assert isinstance(note, Fallback)
    assert note.reason == reason
    assert side._manager.sink.value(catalog.FALLBACKS, reason=reason) == 1


def test_chunks_and_metadata_reach_the_agent(side):
    offer(side)
    opened(side)
    assert side.commit(ROOM, [5, 6], slice(0, 2), False, None)
    assert side.commit(ROOM, [9, 7], slice(2, 4), True, 2)
    assert side.agent.posts[1:] == [
        ("commit", 0, [5, 6], False),
        ("commit", 2, [9, 7], True),
        ("aux", ((50 + 2 * 8, 60 + 3 * 8, 8),)),
    ]
    assert not side.commit(ROOM + 1, [1], slice(0, 1), True, 0)


def test_the_agent_is_stopped_when_its_process_ends(monkeypatch):
    from smartgen.core import KVGeometry, Mode
    from smartgen.transport import LoopbackTransport

    from smartgen_patches.disagg import prefill_side

    at_exit = []
    monkeypatch.setattr(prefill_side.atexit, "register", at_exit.append)
    loopback = LoopbackTransport(clock=time.monotonic)
    monkeypatch.setattr(prefill_side, "MooncakeTransport", lambda **_: loopback)
    manager = FakeManager(Mode.LAYERWISE)
    manager.local_ip, manager._registerable_regions = "127.0.0.1", list
    manager.geometry = KVGeometry(layers=1, page_size=16, page_bytes=(64, 64))
    agent = prefill_side.PrefillSide(manager).agent
    (stop,) = at_exit
    assert agent._thread.is_alive()
    assert stop()
    assert not agent._thread.is_alive()


def test_a_silent_peer_is_refused_after_its_time(monkeypatch):
    from smartgen.core import Mode

    from smartgen_patches.disagg import peers

    now = [100.0]
    monkeypatch.setattr(peers.time, "monotonic", lambda: now[0])
    known = peers.PrefillPeers(FakeManager(Mode.LAYERWISE).identity)
    known.expect("a:1")
    assert known.refusal("a:1") is None
    now[0] += peers.HELLO_WAIT_S
    assert "no smartgen answer" in known.refusal("a:1")
    known.heard("a:1", FakeManager(Mode.LAYERWISE).identity)
    assert known.refusal("a:1") is None
    known.heard("a:1", FakeManager(Mode.FULL).identity)
    assert "mode differs" in known.refusal("a:1")


def test_a_rejection_is_said_once_and_not_for_ever(monkeypatch):
    from smartgen_patches.disagg import rejected

    now = [0.0]
    monkeypatch.setattr(rejected.time, "monotonic", lambda: now[0])
    rooms = rejected.RejectedRooms()
    rooms.add(1, "because")
    assert rooms.take(1) == "because"
    assert rooms.take(1) is None
    rooms.add(2, "old")
    now[0] += rejected.KEEP_S + 1
    rooms.add(3, "new")
    assert rooms.take(2) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"is_generation": False}, "does not generate text"),
        ({"attention_arch": "mla"}, "compressed KV cache (MLA)"),
        ({"is_hybrid_swa": True}, "sliding-window"),
        ({"is_multimodal": True}, "several modalities"),
    ],
)
def test_models_that_layer_wise_transfer_does_not_serve(change, words):
    from sglang.srt.configs.model_config import AttentionArch

    from smartgen_patches.support import unsupported_model

    values = {
        "hf_config": SimpleNamespace(architectures=["SomeForCausalLM"]),
        "is_generation": True,
        "attention_arch": AttentionArch.MHA,
        "is_hybrid_swa": False,
        "is_multimodal": False,
        **change,
    }
    if values["attention_arch"] == "mla":
        values["attention_arch"] = AttentionArch.MLA
    said = unsupported_model(SimpleNamespace(**values))
    if words is None:
        assert said is None
    else:
        assert "SomeForCausalLM" in said
        assert words in said


@pytest.mark.parametrize(
    ("deadline_s", "hold", "refused"), [(15, None, 0), (30, None, 1), (30, "31", 0)]
)
def test_a_write_deadline_below_sglangs_hold_on_the_pages(monkeypatch, deadline_s, hold, refused):
    from smartgen.config import Settings

    from smartgen_patches.support import outlasting_write

    variable = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
    monkeypatch.delenv(variable, raising=False)
    if hold is not None:
        monkeypatch.setenv(variable, hold)
    said = outlasting_write(Settings(write_deadline_s=deadline_s))
    assert (said is not None) == bool(refused)
    if said:
        assert all(
            part in said for part in (f"-deadline-s {deadline_s} ", f"{variable}=30", "lower")
        )


@pytest.mark.parametrize(
    ("params", "default", "reason"),
    [
        (None, "layerwise", None),
        (None, "full", "configured"),
        ({"smartgen": {"mode": "full"}}, "layerwise", "requested"),
        ({"smartgen": {"mode": "layerwise"}}, "layerwise", None),
        ({"smartgen": {"mode": "full"}}, "full", "configured"),
        ({"smartgen": {"mode": "layerwise"}}, "full", "mode_not_served"),
        ({"smartgen": {"mode": "warp"}}, "layerwise", "mode_not_served"),
        ({"smartgen": {"mode": "selective"}}, "layerwise", "mode_not_served"),
        ({"smartgen": {"mode": ["full"]}}, "layerwise", "mode_not_served"),
        ({"smartgen": "warp"}, "layerwise", "mode_not_served"),
        ({"smartgen": {}}, "layerwise", None),
        ({"other": 1}, "layerwise", None),
    ],
)
def test_a_requests_wish(caplog, params, default, reason):
    from smartgen.core import Mode

    from smartgen_patches.disagg.request_mode import why_full

    assert why_full(request(params), Mode.parse(default)) == reason
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (reason == "mode_not_served")
    assert all("request r asks for mode" in line and "modes: " in line for line in said)


@pytest.mark.parametrize(
    ("server", "wish", "counted", "told"),
    [
        ("layerwise", "selective", 1, "mode_not_served"),
        ("full", "selective", 1, None),
        ("full", None, 0, None),
    ],
)
def test_a_wish_that_is_not_served_is_counted_and_decode_is_told(side, server, wish, counted, told):
    from smartgen.core import Mode
    from smartgen.metrics import catalog
    from smartgen.wire import unpack

    side._manager.settings.mode = Mode.parse(server)
    offer(side)
    assert opened(side, wish=wish) is None
    assert side.agent.posts == []
    assert side._manager.sink.value(catalog.FALLBACKS, reason="mode_not_served") == counted
    notes = [note.reason for _, frames in side._manager.told for note in unpack(frames)]
    assert notes == ([] if told is None else [told])


@pytest.mark.parametrize(
    ("prompt", "sent", "cached", "end", "start_page", "pages"),
    [
        (100, 0, 0, 100, 0, [3, 4, 5, 6, 7, 8, 9]),  # one chunk, the partial page too
        (100, 0, 0, 50, 0, [3, 4, 5]),  # a middle chunk keeps its partial page back
        (100, 48, 50, 100, 3, [6, 7, 8, 9]),  # and the next one brings it
        (100, 0, 32, 100, 2, [5, 6, 7, 8, 9]),  # a cached prefix goes on its own
        (100, 0, 0, 10, None, None),  # no page is full yet
    ],
)
def test_pages_that_a_forward_completes(prompt, sent, cached, end, start_page, pages):
    import torch

    from smartgen_patches.forward_context import _chunk_pages

    slots = torch.arange(3 * 16, 3 * 16 + 112, dtype=torch.int32)
    scheduler = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(page_size=16),
        req_to_token_pool=SimpleNamespace(req_to_token=slots.view(1, -1)),
    )
    req = SimpleNamespace(
        disagg_kv_sender=SimpleNamespace(pushes_layers=True),
        pending_bootstrap=False,
        origin_input_ids=[0] * prompt,
        extend_end=end,
        start_send_idx=sent,
        prefix_len=cached,
        kv=SimpleNamespace(req_pool_idx=0),
    )
    chunk = _chunk_pages(scheduler, req)
    if pages is None:
        assert chunk is None
    else:
        assert (chunk.start, chunk.src_pages.tolist()) == (start_page, pages)


@pytest.mark.parametrize(("cores", "threads"), [({1}, "1"), ({0, 2, 4, 6, 7}, "2")])
def test_a_server_of_a_pair_takes_half_of_the_cores_it_may_run_on(monkeypatch, cores, threads):
    from smartgen_patches import cpu_defaults

    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(cpu_defaults.os, "sched_getaffinity", lambda pid: cores)
    cpu_defaults._limit_threads(SimpleNamespace(disaggregation_mode="null"))
    assert os.environ["OMP_NUM_THREADS"] == ""
    cpu_defaults._limit_threads(SimpleNamespace(disaggregation_mode="decode"))
    assert os.environ["OMP_NUM_THREADS"] == threads


def test_a_checksum_covers_the_prompt_and_nothing_behind_it():
    import torch

    from smartgen_patches.digest import kv_digest

    keys, values = (ctypes.create_string_buffer(bytes(range(64)) * 2, 128) for _ in range(2))
    kv_args = SimpleNamespace(
        page_size=4,
        kv_data_ptrs=[ctypes.addressof(keys), ctypes.addressof(values)],
        kv_item_lens=[32, 32],
    )
    row = torch.tensor([[8, 9, 10, 11, 4, 5, 6, 7]], dtype=torch.int32)
    before = kv_digest(kv_args, row, 0, 6)
    expected = zlib.crc32(keys.raw[64:96] + keys.raw[32:48])
    expected = zlib.crc32(values.raw[64:96] + values.raw[32:48], expected)
    assert before == [expected]
    keys[50] = b"\xff"  # behind the sixth token
    assert kv_digest(kv_args, row, 0, 6) == before
    keys[40] = b"\xff"
    assert kv_digest(kv_args, row, 0, 6) != before
