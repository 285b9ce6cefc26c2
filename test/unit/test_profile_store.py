import contextlib
import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smartgen.profile import (
    MAX_BYTES,
    Calibration,
    Floor,
    HeldOut,
    Identity,
    Profile,
    ProfileError,
    check_fits,
    dump,
    generic,
    load,
    shipped,
)

IDENTITY = Identity(
    model="acme/tiny",
    config_sha256="0" * 64,
    dtype="bfloat16",
    page_size=16,
    block_size=32,
    layers=3,
    heads=9,
    kv_heads=3,
    head_size=64,
    chat_template_sha256="1" * 64,
)
MEASURED = msgspec.structs.replace(
    generic(IDENTITY),
    calibration=Calibration(
        prompts_sha256="2" * 64, prompts=10, kinds={"code": 6, "qa": 4}, scored_tokens=300, seed=0
    ),
    floor=Floor(kl=0.0009, agreement=0.985),
    held_out=(
        HeldOut(
            selector="window-16-max",
            fraction=0.2,
            kl=0.034,
            kl_low=0.02,
            kl_high=0.05,
            agreement=0.94,
        ),
    ),
    software={"smartgen": "0.1.0"},
)
TEXT = dump(MEASURED)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(TEXT)
    assert load(path) == MEASURED
    assert load(TEXT.encode()) == MEASURED
    assert MEASURED.measured
    assert not generic(IDENTITY).measured


def test_the_text_has_one_row_of_numbers_per_line():
    assert '  "position": [\n    [1.0],\n    [1.0],\n    [1.0]\n  ],\n' in TEXT
    assert TEXT.endswith("}\n")
    assert max(map(len, TEXT.splitlines())) < 160


def test_a_file_may_be_indented_otherwise():
    assert load(json.dumps(json.loads(TEXT), sort_keys=True).encode()) == MEASURED


@settings(deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.integers(1, 255))
def test_a_damaged_byte_is_refused_unless_it_changes_no_value(place, flip):
    data = bytearray(TEXT.encode())
    data[place] ^= flip
    with contextlib.suppress(ProfileError):
        assert load(bytes(data)) == MEASURED


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_profile_are_refused(data):
    with pytest.raises(ProfileError):
        load(data)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[]", "holds no JSON object"),
        (b"{}", "is damaged or was edited"),
        (TEXT[: len(TEXT) // 2].encode(), "is no JSON"),
        (TEXT.replace("0.985", "0.995").encode(), "is damaged or was edited"),
        (b" " * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes"),
    ],
)
def test_a_refusal_names_file_cause_and_remedy(data, cause):
    with pytest.raises(ProfileError) as caught:
        load(data, name="here.json")
    assert str(caught.value).startswith("here.json: ")
    assert cause in caught.value.cause
    assert caught.value.remedy


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"none\.json: cannot be read \(No such file"):
        load(tmp_path / "none.json")


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        os.truncate(file.fileno(), MAX_BYTES * 1000)
    with pytest.raises(ProfileError, match="is larger than"):
        load(path)


def signed(**changes):
    """The text of a profile with other content, its checksum right."""
    content = {**msgspec.to_builtins(MEASURED), **changes}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({"sha256": hashlib.sha256(canonical).hexdigest(), **content}).encode()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"format": 2}, "has format 2, this version reads 1"),
        ({"floor": {"kl": "low", "agreement": 1.0}}, r"got `str` - at `\$\.floor\.kl`"),
        ({"surprise": 1}, "unknown field `surprise`"),
        ({"position": [[1.0], [1.0], [2.0]]}, r"position\[2\]\[0\] is 2.0, must be 0.0..1.0"),
    ],
)
def test_content_that_is_whole_but_wrong_is_refused(changes, cause):
    assert load(signed()) == MEASURED
    with pytest.raises(ProfileError, match=cause):
        load(signed(**changes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "acme/other"),
        ("config_sha256", "9" * 64),
        ("dtype", "float16"),
        ("page_size", 32),
        ("block_size", 64),
        ("layers", 4),
        ("heads", 12),
        ("kv_heads", 9),
        ("head_size", 128),
    ],
)
def test_a_foreign_profile_is_refused_with_both_values(field, value):
    server = msgspec.structs.replace(IDENTITY, **{field: value})
    mine = getattr(IDENTITY, field)
    with pytest.raises(
        ProfileError, match=f"x: was made for {field} {mine}, this server has {value}; use"
    ):
        check_fits(MEASURED, server, name="x")


def test_another_chat_template_fits():
    check_fits(MEASURED, msgspec.structs.replace(IDENTITY, chat_template_sha256=None))


def test_the_shipped_profile_that_fits_is_found(tmp_path):
    foreign = generic(msgspec.structs.replace(IDENTITY, model="acme/other"))
    (tmp_path / "a.json").write_text(dump(foreign))
    (tmp_path / "readme.txt").write_text("no profile")
    assert shipped(IDENTITY, folder=tmp_path) is None
    (tmp_path / "b.json").write_text(TEXT)
    assert shipped(IDENTITY, folder=tmp_path) == MEASURED
    assert shipped(IDENTITY, folder=tmp_path / "none") is None


def test_no_shipped_profile_is_damaged():
    assert shipped(msgspec.structs.replace(IDENTITY, model="nobody has it")) is None


def test_a_damaged_shipped_profile_is_named(tmp_path):
    (tmp_path / "a.json").write_text(TEXT.replace("bfloat16", "float16"))
    with pytest.raises(ProfileError, match=r"a\.json: is damaged"):
        shipped(IDENTITY, folder=Path(tmp_path))


@settings(deadline=None)
@given(st.integers(1, 200))
def test_the_generic_rule_is_a_valid_profile_of_any_depth(layers):
    identity = msgspec.structs.replace(IDENTITY, layers=layers)
    profile = generic(identity)
    check_fits(profile, identity)
    assert isinstance(profile, Profile)
    assert load(dump(profile).encode()) == profile
    assert profile.on_demand.layers == tuple(range(layers))
