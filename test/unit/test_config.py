"""Settings: one definition, and everything wrong is named."""

import argparse
import os
from pathlib import Path

import pytest
from smartgen.config import (
    ENVIRONMENT_VARIABLE,
    Protocol,
    Settings,
    SettingsError,
    add_flags,
    provide_variables,
    replaced_variable,
    settings_from_environment,
    settings_from_mapping,
    settings_from_namespace,
    settings_table,
    settings_to_mapping,
)
from smartgen.core import Mode


def parse(*argv):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return settings_from_namespace(parser.parse_args(argv))


def test_defaults_come_from_the_class():
    assert parse() == Settings()


def test_flags_reach_their_settings():
    given = parse("--smartgen-mode", "full", "--smartgen-protocol", "tcp", "--smartgen-debug")
    assert given == Settings(mode=Mode.FULL, protocol=Protocol.TCP, debug=True)


def test_selective_is_not_offered_yet(capsys):
    with pytest.raises(SystemExit):
        parse("--smartgen-mode", "selective")
    assert "layerwise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"mode": "selective"}, "not available"),
        ({"mode": "fast"}, "allowed: ['full', 'layerwise']"),
        ({"write_deadline_s": "soon"}, "float"),
        ({"write_deadline_s": 0.5}, "1..600"),
        ({"debug": "yes"}, "bool"),
        ({"speed": 1}, "unknown SmartGen setting 'speed'"),
    ],
)
def test_bad_values_are_named(values, word):
    with pytest.raises(SettingsError, match=r".") as refused:
        settings_from_mapping(values)
    assert word in str(refused.value)


def test_plain_values_survive_the_way_to_another_process():
    settings = Settings(mode=Mode.FULL, write_deadline_s=3.0)
    assert settings_from_mapping(settings_to_mapping(settings)) == settings


@pytest.mark.parametrize("text", ["{", "[]", '{"mode": "x"}'])
def test_a_bad_environment_is_refused(monkeypatch, text):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, text)
    with pytest.raises(SettingsError):
        settings_from_environment()


def test_the_environment_serves_hosts_without_flags(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, '{"mode": "full"}')
    assert settings_from_environment().mode is Mode.FULL


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("A", "theirs")
    monkeypatch.setenv("B", "")
    monkeypatch.delenv("B")
    provide_variables({"A": "ours", "B": "ours"})
    assert (os.environ["A"], os.environ["B"]) == ("theirs", "ours")


@pytest.mark.parametrize("before", [None, "theirs"])
def test_a_replaced_variable_comes_back(monkeypatch, before):
    monkeypatch.delenv("A", raising=False)
    if before is not None:
        monkeypatch.setenv("A", before)
    with replaced_variable("A", "ours"):
        assert os.environ["A"] == "ours"
    assert os.environ.get("A") == before


def test_only_config_and_the_starts_of_processes_touch_the_environment():
    root = Path(__file__).parents[2]
    allowed = ("config/environment.py", "cli/*.py", "model/convert.py")
    sources = {*root.glob("python/smartgen/**/*.py"), *root.glob("smartgen_patches/**/*.py")}
    for pattern in allowed:
        sources -= set(root.glob(f"python/smartgen/{pattern}"))
    assert len(sources) > 50
    words = ("os.environ", "os.getenv", "os.putenv")
    assert [s for s in sources if any(word in s.read_text() for word in words)] == []


def test_the_table_has_a_row_for_each_setting():
    rows = settings_table().splitlines()
    assert len(rows) == 2 + len(settings_to_mapping(Settings()))
