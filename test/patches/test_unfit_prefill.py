"""A prefill server that does not fit spoils its own requests, and only until a fitting one answers."""

from types import SimpleNamespace

import pytest

# Importing SGLang warns about missing devices and about its own dependencies.
pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

ADDRESS = "10.0.0.1:8998"


@pytest.fixture
def manager(monkeypatch):
    """A decode manager without sockets; `answer` is what SGLang's own check does."""
    from smartgen_patches.disagg import manager as module

    made = object.__new__(module.SmartGenKVManager)
    made.prefill_info_table = {}
    made.decode_side = SimpleNamespace(unfit=lambda *_: None)
    made.answer = lambda: True
    monkeypatch.setattr(
        module.MooncakeKVManager, "try_ensure_parallel_info", lambda self, address: self.answer()
    )
    monkeypatch.setattr(module, "fetch_prefill_info", lambda address: "info")
    monkeypatch.setattr(made, "_resolve_rank_mapping", lambda info: None, raising=False)
    return made


@pytest.fixture
def side(manager):
    from smartgen_patches.disagg.decode_side import DecodeSide

    side = object.__new__(DecodeSide)
    side._unfit = {}
    manager.decode_side = side
    return side


def test_the_verdict_ends_when_another_server_answers_there(manager, side):
    def mismatch():
        raise RuntimeError("page_size=32, but 16")

    manager.answer = mismatch
    assert manager.try_ensure_parallel_info(ADDRESS)
    assert side.refusal(ADDRESS, []) == "page_size=32, but 16"

    # Known by now: asked again for each request, and still the same server.
    manager.answer = lambda: pytest.fail("SGLang was asked again")
    assert manager.try_ensure_parallel_info(ADDRESS)
    assert side.refusal(ADDRESS, []) is not None

    # SGLang forgets a server whose heartbeat fails; its successor fits.
    manager.prefill_info_table.clear()
    manager.answer = lambda: True
    assert manager.try_ensure_parallel_info(ADDRESS)
    assert side.refusal(ADDRESS, []) is None
