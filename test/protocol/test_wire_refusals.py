"""Whatever arrives, decoding gives messages or a WireError."""

import contextlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from smartgen.core import Mode, RequestKey, Run, merge_runs
from smartgen.wire import (
    Close,
    Delivered,
    Fallback,
    Hello,
    Landed,
    Open,
    WireError,
    decode,
    encode,
    find,
    is_ours,
    pack,
    unpack,
)
from smartgen.wire.codec import HEADER, MAGIC, MAX_BODY, MAX_FRAME

KEY = RequestKey(1, 2)
GOOD = encode(Close.of(KEY, "bye"))

big = st.integers(0, 2**63 - 1)
count = st.integers(0, 2**31 - 1)
positive = st.integers(1, 2**31 - 1)
text = st.text(max_size=60)
keys = st.builds(RequestKey, big, big)
modes = st.sampled_from(Mode)
runs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), min_size=1, max_size=30).map(
    lambda pairs: merge_runs(Run(start, start + length) for start, length in pairs)
)
messages = st.one_of(
    st.builds(
        Hello,
        text,
        st.integers(0, 255),
        modes.map(lambda mode: mode.value),
        positive,
        text,
        text,
        positive,
        st.lists(positive, max_size=8).map(tuple),
    ),
    st.builds(Open.of, keys, modes, count),
    st.builds(Landed.of, keys, count, runs),
    st.builds(
        Delivered,
        big,
        big,
        st.lists(st.tuples(st.integers(0, 255), big), max_size=6).map(tuple),
        big,
        count,
        big,
    ),
    st.builds(Fallback.of, keys, st.text(max_size=900)),
    st.builds(Close.of, keys, text),
)


@given(st.lists(messages, min_size=1, max_size=5))
def test_what_goes_out_comes_in(several):
    assert list(unpack(pack(several))) == several
    assert decode(b"".join(encode(message) for message in several)) == tuple(several)


@given(st.binary(max_size=300))
@example(b"")
@example(MAGIC)
def test_random_bytes_raise_nothing_else(data):
    with pytest.raises(WireError):
        decode(data)


@given(messages, st.data())
def test_damaged_messages_raise_nothing_else(message, data):
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for damaged in (bytes(frame), bytes(frame[:cut])):
        with contextlib.suppress(WireError):
            decode(damaged)


@given(
    st.integers(0, 255),
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(),
            text,
            st.binary(max_size=20),
        ),
        st.lists,
        max_leaves=20,
    ),
)
def test_any_value_under_any_tag_raises_nothing_else(tag, value):
    body = msgspec.msgpack.encode(value)
    frame = HEADER.pack(MAGIC, 1, tag, 0, len(body)) + body
    with contextlib.suppress(WireError):
        decode(frame)


def frame(body, *, magic=MAGIC, version=1, tag=3, flags=0, length=None):
    body = msgspec.msgpack.encode(body) if not isinstance(body, bytes) else body
    return HEADER.pack(magic, version, tag, flags, len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "frame of 0 bytes"),
        (GOOD[:5], "5 bytes left"),
        (frame([], magic=b"HTTP"), "no message starts here"),
        (frame([], version=2), "wire version 2, this side speaks 1"),
        (frame([], version=0), "wire version 0"),
        (frame([], tag=7), "unknown message tag 7"),
        (frame([], tag=0), "unknown message tag 0"),
        (frame([], flags=1), "unknown flags 0x0001"),
        (frame(b"", length=MAX_BODY + 1), "at most 262144 are allowed"),
        (frame(b"x", length=2**32 - 1), "at most 262144 are allowed"),
        (frame(b"x", length=2), "says 2 bytes, 1 are there"),
        (GOOD + b"x", "1 bytes left"),
        (frame(b"\xdd\xff\xff\xff\xff"), "truncated"),
        (frame(b"\xc1" * 9), "tag 3"),
        (frame([1, 2, 0, [[0, 4]], 9]), "length 4"),
        (frame([1, 2]), "tag 3"),
        (frame([-1, 2, 0, [[0, 4]]]), ">= 0"),
        (frame([2**63, 2, 0, [[0, 4]]]), "tag 3"),
        (frame([1, 2, 2**31, [[0, 4]]]), "<= 2147483647"),
        (frame([1, 2, True, [[0, 4]]]), "got `bool`"),
        (frame([1, 2, "0", [[0, 4]]]), "got `str`"),
        (frame([1, 2, 0, []]), "length >= 1"),
        (frame([1, 2, 0, [[0, 4]] * 9000]), "length <= 8192"),
        (frame([1, 2, 0, [[0, 4, 5]]]), "length 2"),
        (frame([1, 2, 0, [[4, 4]]]), "not be empty"),
        (frame([1, 2, 0, [[5, 4]]]), "not be empty"),
        (frame([1, 2, 0, [[4, 6], [5, 9]]]), "must rise"),
        (frame([1, 2, "fast", 3], tag=2), "use one of full"),
        (frame([1, 2, "x" * 513], tag=6), "length <= 512"),
        (frame(["0", 1, "full", 0, "m", "d", 1, []], tag=1), ">= 1"),
    ],
)
def test_refusals_say_what_is_wrong(data, why):
    with pytest.raises(WireError, match=why):
        decode(data)


def test_too_long_frames_are_refused_unread():
    with pytest.raises(WireError, match="must be 1 to"):
        decode(bytes(MAX_FRAME + 1))


def test_too_many_frames_are_refused_unread():
    with pytest.raises(WireError, match="65 frames"):
        unpack([b"SMARTGEN"] + [GOOD] * 64)


def test_what_would_be_refused_is_not_sent():
    with pytest.raises(WireError, match="empty"):
        encode(Landed(1, 2, 0, ((4, 4),)))
    with pytest.raises(WireError, match="not a message"):
        encode("hello")


def test_long_reasons_are_cut_not_refused():
    (close,) = decode(encode(Close.of(KEY, "x" * 2000)))
    assert len(close.reason) == 512


def test_only_our_tag_is_ours():
    assert is_ours([b"SMARTGEN"])
    assert not is_ours([b"SMARTGENX"])
    assert not is_ours([b"123", b"SMARTGEN"])
    with pytest.raises(WireError, match="without our tag"):
        unpack([b"123"])


def test_a_message_is_found_behind_the_frames_of_the_host():
    host = [b"None", b"ip", b"1", GOOD]
    opened = Open.of(KEY, Mode.LAYERWISE, 4)
    assert find([*host, encode(opened)], Open, after=3) == opened
    assert find([*host, b"something else"], Open, after=3) is None
    assert find(host, Close, after=3) is None
    assert find([*host, GOOD], Open, after=3) is None
    with pytest.raises(WireError):
        find([*host, GOOD[:-1]], Open, after=3)
