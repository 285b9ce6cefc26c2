"""The bytes of every message, written down. A change here breaks running servers: add a tag."""

import pytest
from smartgen.core import Identity, Mode, Path, RequestKey, Run
from smartgen.wire import (
    Close,
    Delivered,
    Fallback,
    Hello,
    Landed,
    Open,
    decode,
    encode,
    pack,
    unpack,
)
from smartgen.wire.messages import TAG_OF, TAGS

KEY = RequestKey(2**40 + 1, 3)
IDENTITY = Identity(
    product_version="0.1.0",
    wire_version=1,
    mode=Mode.LAYERWISE,
    page_size=16,
    model="smol",
    dtype="bf16",
    layers=2,
    page_bytes=(6144, 6144, 6144, 6144),
)

GOLDEN = {
    Hello: (
        Hello.of(IDENTITY),
        "53474b56 01 01 0000 0000002b"
        "98 a5302e312e30 01 a96c6179657277697365 10 a4736d6f6c a462663136 02"
        "94 cd1800 cd1800 cd1800 cd1800",
    ),
    Open: (
        Open.of(KEY, Mode.FULL, 300),
        "53474b56 01 02 0000 00000013 94 cf0000010000000001 03 a466756c6c cd012c",
    ),
    Landed: (
        Landed.of(KEY, 5, (Run(0, 4), Run(9, 200))),
        "53474b56 01 03 0000 00000014 94 cf0000010000000001 03 05 92 920004 9209ccc8",
    ),
    Delivered: (
        Delivered.of(
            KEY,
            bytes_by_path=((Path.LAYERWISE, 65536), (Path.AUX, 7)),
            transfer_us=1_000_000,
            total_pages=12,
            resent_bytes=0,
        ),
        "53474b56 01 04 0000 0000001d 96 cf0000010000000001 03"
        "92 9203ce00010000 920407 ce000f4240 0c 00",
    ),
    Fallback: (
        Fallback.of(KEY, "short"),
        "53474b56 01 05 0000 00000011 93 cf0000010000000001 03 a573686f7274",
    ),
    Close: (
        Close.of(KEY, ""),
        "53474b56 01 06 0000 0000000c 93 cf0000010000000001 03 a0",
    ),
}


@pytest.mark.parametrize("kind", list(GOLDEN))
def test_the_bytes_of_a_message_do_not_change(kind):
    message, golden = GOLDEN[kind]
    assert encode(message).hex() == golden.replace(" ", "")
    assert decode(bytes.fromhex(golden.replace(" ", ""))) == (message,)


def test_every_message_has_golden_bytes_and_its_own_tag():
    assert set(GOLDEN) == set(TAGS.values())
    assert {kind.__name__: tag for kind, tag in TAG_OF.items()} == {
        "Hello": 1,
        "Open": 2,
        "Landed": 3,
        "Delivered": 4,
        "Fallback": 5,
        "Close": 6,
    }


def test_an_identity_survives_the_wire():
    (hello,) = decode(encode(Hello.of(IDENTITY)))
    assert hello.identity == IDENTITY


def test_keys_survive_the_wire():
    for message, _ in GOLDEN.values():
        if not isinstance(message, Hello):
            assert decode(encode(message))[0].key == KEY


def test_several_messages_travel_in_one_control_message():
    messages = tuple(message for message, _ in GOLDEN.values())
    frames = pack(messages)
    assert frames[0] == b"SMARTGEN"
    assert len(frames) == 2
    assert unpack(frames) == messages


def test_long_lists_of_messages_are_spread_over_frames():
    landed = Landed.of(KEY, 0, tuple(Run(2 * i, 2 * i + 1) for i in range(8000)))
    frames = pack([landed] * 200)
    assert len(frames) > 2
    assert unpack(frames) == (landed,) * 200
