import msgspec
import pytest
from smartgen.profile import (
    Calibration,
    Floor,
    HeldOut,
    Identity,
    LengthBin,
    ProfileError,
    Sensitivity,
    Target,
    dump,
    generic,
)

PROFILE = generic(
    Identity(
        model="acme/tiny",
        config_sha256="0" * 64,
        dtype="bfloat16",
        page_size=16,
        block_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_size=64,
    )
)
KL = ((0.5, 0.0), (0.25, 0.0))


def length_bin(**changes):
    return LengthBin(**{"below_tokens": None, "prompts": 3, "kl": KL, "spread": KL, **changes})


def sensitivity(*bins, fractions=(0.1, 1.0)):
    return Sensitivity(fractions=fractions, bins=bins or (length_bin(),))


def part(name, **changes):
    """One part of the profile with some values replaced."""
    return {name: msgspec.structs.replace(getattr(PROFILE, name), **changes)}


def held_out(**changes):
    row = {"fraction": 0.2, "kl": 0.1, "kl_low": 0.1, "kl_high": 0.1, "agreement": 0.9, **changes}
    return {"held_out": (HeldOut(selector="oracle", **row),)}


def target(**changes):
    row = {"below_tokens": None, "layer_fractions": (0.1, 0.3), "predicted_kl": 0.1, **changes}
    return {"targets": (Target(fraction=0.2, **row),)}


CALIBRATION = Calibration(prompts_sha256="2" * 64, prompts=1, kinds={}, scored_tokens=1, seed=0)
NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"format": 2}, "format is 2, must be 1"),
        (part("identity", layers=0), "identity.layers is 0, must be 1..1024"),
        (part("identity", model=""), "identity.model has 0 characters"),
        (part("identity", config_sha256="F" * 64), "config_sha256 is 'F*', must be 64 lower"),
        (part("identity", chat_template_sha256=""), "chat_template_sha256 is '', must be 64"),
        (part("identity", block_size=24), "block_size is 24, must be a multiple of page_size 16"),
        (part("identity", kv_heads=3), "heads is 4, must be a multiple of kv_heads 3"),
        (
            {"calibration": msgspec.structs.replace(CALIBRATION, prompts=0)},
            "calibration.prompts is 0",
        ),
        (
            {"calibration": msgspec.structs.replace(CALIBRATION, kinds={"qa": -1})},
            r"calibration.kinds\['qa'\] is -1",
        ),
        ({"sensitivity": sensitivity(fractions=(1.0,))}, "fractions has 1 entries, must have 2"),
        ({"sensitivity": sensitivity(fractions=(0.1, 0.9))}, r"fractions\[-1\] is 0.9, must be 1"),
        ({"sensitivity": sensitivity(fractions=(1.0, 1.0))}, "1.0 after 1.0, must ascend"),
        ({"sensitivity": sensitivity(fractions=(0.0, 1.0))}, r"fractions\[0\] is 0.0, must be"),
        (
            {"sensitivity": sensitivity(length_bin(below_tokens=9))},
            "below_tokens 9, must be null in the last only",
        ),
        (
            {"sensitivity": sensitivity(length_bin(), length_bin())},
            "below_tokens null, null, must be null in the last only",
        ),
        ({"sensitivity": sensitivity(length_bin(kl=KL[:1]))}, "kl has 1 entries, must have 2"),
        (
            {"sensitivity": sensitivity(length_bin(kl=((0.5,), (0.1, 0.0))))},
            r"bins\[0\].kl\[0\] has 1 entries, must have 2",
        ),
        (
            {"sensitivity": sensitivity(length_bin(kl=((0.5, 0.0), (0.1, 0.1))))},
            r"kl\[1\]\[-1\] is 0.1, must be 0",
        ),
        (
            {"sensitivity": sensitivity(length_bin(kl=((NAN, 0.0), (0.1, 0.0))))},
            r"kl\[0\]\[0\] is nan",
        ),
        (
            {"sensitivity": sensitivity(length_bin(spread=((-1.0, 0.0), (0.1, 0.0))))},
            r"spread\[0\]\[0\] is -1.0",
        ),
        ({"position": ((1.0,),)}, "position has 1 entries, must have 2"),
        ({"position": ((1.0,), (0.5, 0.5))}, r"position\[1\] has 2 entries, must have 1"),
        ({"position": ((), ())}, r"position\[0\] has 0 entries, must have 1..4096"),
        (part("signal", window=-1), "signal.window is -1, must be 0..1024"),
        (part("signal", tried={"oracle": -0.1}), r"signal.tried\['oracle'\] is -0.1"),
        (part("on_demand", layers=(0, 2)), r"on_demand.layers\[1\] is 2, must be 0..1"),
        (part("on_demand", layers=(1, 0)), "on_demand.layers has 0 after 1, must ascend"),
        (part("on_demand", top_fraction=1.5), "top_fraction is 1.5, must be 0.0..1.0"),
        (part("on_demand", digest="means-3"), "digest is 'means-3', must be one of mean, means-16"),
        (part("on_demand", step_bins=(1,)), "expected_fetch has 0 entries, must have 1"),
        ({"floor": Floor(kl=-1.0, agreement=1.0)}, "floor.kl is -1.0"),
        (held_out(kl_low=0.2), r"held_out\[0\].kl_low is 0.2, must be 0.0..0.1"),
        (held_out(kl_high=0.05), r"held_out\[0\].kl_high is 0.05, must be 0.1"),
        (held_out(retrieval=2.0), r"held_out\[0\].retrieval is 2.0"),
        (target(below_tokens=7), r"targets\[0\].below_tokens is 7, must be one of .*: null"),
        (target(layer_fractions=(0.1,)), r"layer_fractions has 1 entries, must have 2"),
        (target(predicted_kl=NAN), "predicted_kl is nan"),
    ],
)
def test_a_bad_value_is_refused_with_its_path_and_range(changes, cause):
    with pytest.raises(ProfileError, match=cause):
        dump(msgspec.structs.replace(PROFILE, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"calibration": CALIBRATION},
        {"sensitivity": sensitivity(length_bin(below_tokens=2000), length_bin())},
        part("on_demand", layers=(1,), digest="means-8", step_bins=(1, 4), expected_fetch=(0.1, 0)),
        held_out(retrieval=1.0),
        target(),
    ],
)
def test_a_good_value_is_not(changes):
    dump(msgspec.structs.replace(PROFILE, **changes))


@pytest.mark.parametrize(("tokens", "index"), [(1, 0), (1999, 0), (2000, 1), (9000, 2)])
def test_a_prompt_falls_into_the_first_bin_that_it_is_shorter_than(tokens, index):
    table = sensitivity(length_bin(below_tokens=2000), length_bin(below_tokens=4000), length_bin())
    assert table.bin_index(tokens) == index
