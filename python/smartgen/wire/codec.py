"""Messages to bytes and back. No sockets here.

One message on the wire is a 12-byte header and a MessagePack array:

    magic "SGKV" | version u8 | tag u8 | flags u16 (0) | body length u32     (big endian)

A frame is one message or several one after the other. A control message is a list of frames whose
first is TAG (ASCII, because the host reads frame 0 as text). Whatever is wrong with the bytes,
decoding raises WireError and nothing else; nothing is allocated for a length before the bound on
it was checked.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from smartgen.wire.errors import WireError
from smartgen.wire.messages import DECODERS, TAG_OF, WIRE_VERSION, Message

TAG: Final = b"SMARTGEN"
MAGIC: Final = b"SGKV"
HEADER: Final = struct.Struct(">4sBBHI")
MAX_BODY: Final = 256 * 1024
MAX_FRAME: Final = 4 * 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """One message as bytes. Raises WireError for a value its own decoder would refuse."""
    tag = TAG_OF.get(type(message))
    if tag is None:
        raise WireError(f"{type(message).__name__} is not a message")
    body = _encode(message)
    _decode_body(tag, body)
    return HEADER.pack(MAGIC, WIRE_VERSION, tag, 0, len(body)) + body


def decode(frame: bytes | bytearray | memoryview) -> tuple[Message, ...]:
    """All messages of one frame; at least one."""
    view = memoryview(frame).cast("B")
    if not 0 < len(view) <= MAX_FRAME:
        raise WireError(f"frame of {len(view)} bytes, must be 1 to {MAX_FRAME}")
    messages: list[Message] = []
    offset = 0
    while offset < len(view):
        tag, length = _header(view[offset:])
        offset += HEADER.size
        if length > len(view) - offset:
            raise WireError(f"message says {length} bytes, {len(view) - offset} are there")
        messages.append(_decode_body(tag, view[offset : offset + length]))
        offset += length
    return tuple(messages)


def pack(messages: Iterable[Message]) -> list[bytes]:
    """The frames of one control message: TAG, then frames below MAX_FRAME each."""
    frames, buffer = [TAG], bytearray()
    for message in messages:
        encoded = encode(message)
        if len(buffer) + len(encoded) > MAX_FRAME:
            frames.append(bytes(buffer))
            buffer.clear()
        buffer += encoded
    if buffer:
        frames.append(bytes(buffer))
    return frames


def is_ours(frames: Sequence[bytes]) -> bool:
    """Does this control message belong to us? Looks at frame 0 only."""
    return len(frames) > 0 and bytes(frames[0]) == TAG


def unpack(frames: Sequence[bytes]) -> tuple[Message, ...]:
    """All messages of a control message for which `is_ours` holds."""
    if not is_ours(frames):
        raise WireError("control message without our tag")
    if len(frames) > 64:
        raise WireError(f"control message of {len(frames)} frames, at most 64 are allowed")
    return tuple(message for frame in frames[1:] for message in decode(frame))


def find(frames: Sequence[bytes], kind: type[Message], *, after: int) -> Message | None:
    """Our message riding behind the host's own frames, None if there is none.

    Looks at frames after index `after`, skips what does not start with MAGIC, and raises
    WireError for a frame that does but cannot be read.
    """
    for frame in frames[after + 1 :]:
        if bytes(frame[: len(MAGIC)]) != MAGIC:
            continue
        for message in decode(frame):
            if isinstance(message, kind):
                return message
    return None


def _header(view: memoryview) -> tuple[int, int]:
    if len(view) < HEADER.size:
        raise WireError(f"{len(view)} bytes left, a header has {HEADER.size}")
    magic, version, tag, flags, length = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WireError("no message starts here")
    if version != WIRE_VERSION:
        raise WireError(f"wire version {version}, this side speaks {WIRE_VERSION}")
    if tag not in DECODERS:
        raise WireError(f"unknown message tag {tag}")
    if flags:
        raise WireError(f"unknown flags {flags:#06x} in a message with tag {tag}")
    if length > MAX_BODY:
        raise WireError(f"message of {length} bytes, at most {MAX_BODY} are allowed")
    return tag, length


def _decode_body(tag: int, body: bytes | memoryview) -> Message:
    if len(body) > MAX_BODY:
        raise WireError(f"message of {len(body)} bytes, at most {MAX_BODY} are allowed")
    try:
        message = DECODERS[tag].decode(body)
        message.validate()
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise WireError(f"message with tag {tag}: {error}") from error
    return message
