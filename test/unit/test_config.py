"""Settings: one definition, and everything wrong is named."""

import argparse

import pytest
from smartgen.config import (
    ENVIRONMENT_VARIABLE,
    Protocol,
    Settings,
    SettingsError,
    add_flags,
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


def test_the_table_has_a_row_for_each_setting():
    rows = settings_table().splitlines()
    assert len(rows) == 2 + len(settings_to_mapping(Settings()))
