"""The hook table against the installed SGLang, and what happens when it does not match."""

import dataclasses

import pytest

# Importing SGLang warns about missing devices and about its own dependencies.
pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def verify():
    from smartgen_patches import verify

    return verify


def test_every_target_exists_with_the_parameters_we_wrote_down(verify):
    assert verify.problems() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "sglang.srt.managers.scheduler.Scheduler.gone"}, ("is missing", "gone")),
        ({"target": "sglang.srt.no_such_module.f"}, ("is missing", "no_such_module")),
        ({"parameters": ("self", "moved")}, ("takes self instead of self, moved",)),
    ],
)
def test_a_target_that_moved_is_named_with_the_remedy(verify, monkeypatch, change, words):
    hook = next(h for h in verify.HOOKS if h.target.endswith("on_idle"))
    monkeypatch.setattr(verify, "HOOKS", (dataclasses.replace(hook, **change),))
    (problem,) = verify.problems()
    assert all(word in problem for word in words)
    assert "reinstall sglang==0.5.23" in problem


@pytest.mark.parametrize("version", ["0.5.22", "0.6.0"])
def test_another_sglang_is_refused_before_anything_is_hooked(verify, monkeypatch, version, capsys):
    monkeypatch.setattr(verify.metadata, "version", lambda name: version)
    with pytest.raises(SystemExit) as refused:
        verify.refuse_unless_verified()
    assert refused.value.code == 1
    said = capsys.readouterr().err
    assert version in said
    assert "pip install sglang==0.5.23" in said


def test_hooks_say_why(verify):
    assert all(hook.reason for hook in verify.HOOKS)
    assert len({hook.target for hook in verify.HOOKS}) == len(verify.HOOKS)
