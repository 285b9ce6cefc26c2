import dataclasses

import pytest
from smartgen.core import Identity, KVGeometry, Mode, Path

HERE = Identity(
    product_version="0.1.0",
    wire_version=1,
    mode=Mode.LAYERWISE,
    page_size=16,
    model="smol",
    dtype="bfloat16",
    layers=2,
    page_bytes=(6144,) * 4,
)


def test_equal_identities_match():
    assert HERE.mismatch(dataclasses.replace(HERE)) is None


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        ("page_size", 1, ["page_size differs: 16 here, 1 on the peer", "same --page-size"]),
        ("mode", Mode.FULL, ["layerwise here, full on the peer", "same --smartgen-mode"]),
        ("model", "other", ["smol here, other on the peer", "--model-path"]),
        ("dtype", "float16", ["bfloat16 here", "--kv-cache-dtype"]),
        ("layers", 3, ["2 here, 3 on the peer"]),
        (
            "page_bytes",
            (6144, 6144, 512, 512),
            ["4 entries of 6144 bytes", "512/6144", "--tp-size"],
        ),
        ("product_version", "0.2.0", ["0.1.0 here, 0.2.0", "same smartgen version"]),
        ("wire_version", 2, ["1 here, 2 on the peer"]),
    ],
)
def test_a_mismatch_names_field_values_and_remedy(field, value, parts):
    sentence = HERE.mismatch(dataclasses.replace(HERE, **{field: value}))
    assert sentence is not None
    assert field in sentence
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence


def test_entries_of_a_layer_are_its_k_and_v():
    geometry = KVGeometry(layers=3, page_size=16, page_bytes=(1, 2, 3, 10, 20, 30))
    assert geometry.entries_of(1) == (1, 4)
    assert geometry.layer_page_bytes(2) == 33
    assert geometry.token_page_bytes == 66
    assert geometry.entries_per_layer == 2


def test_one_entry_per_layer_works_too():
    geometry = KVGeometry(layers=2, page_size=64, page_bytes=(7, 9))
    assert geometry.entries_of(1) == (1,)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layers": 0}, "layers"),
        ({"page_size": 0}, "page_size"),
        ({"page_bytes": (1, 2, 3)}, "multiple of 2"),
        ({"page_bytes": (1, 0)}, "positive"),
    ],
)
def test_impossible_geometry_is_refused_by_name(change, text):
    good = {"layers": 2, "page_size": 16, "page_bytes": (1, 1)}
    with pytest.raises(ValueError, match=text):
        KVGeometry(**{**good, **change})


def test_unknown_modes_are_told_the_known_ones():
    assert Mode.parse("layerwise") is Mode.LAYERWISE
    with pytest.raises(ValueError, match="full, layerwise, selective"):
        Mode.parse("fast")


def test_path_numbers_are_frozen_and_ranks_are_an_order():
    numbers = {path.name: int(path) for path in Path}
    assert numbers == {
        "ONDEMAND": 0,
        "PROACTIVE": 1,
        "SPECULATIVE": 2,
        "LAYERWISE": 3,
        "AUX": 4,
    }
    assert Path.ONDEMAND.rank < Path.PROACTIVE.rank < Path.SPECULATIVE.rank
    assert len({path.rank for path in Path}) == len(Path)
