"""Messages between prefill and decode: values to bytes and back, no sockets."""

from smartgen.wire.codec import TAG, decode, encode, find, is_ours, pack, unpack
from smartgen.wire.errors import WireError
from smartgen.wire.messages import (
    MAX_RUNS,
    WIRE_VERSION,
    Close,
    Delivered,
    Fallback,
    Hello,
    Landed,
    Message,
    Open,
)

__all__ = [
    "MAX_RUNS",
    "TAG",
    "WIRE_VERSION",
    "Close",
    "Delivered",
    "Fallback",
    "Hello",
    "Landed",
    "Message",
    "Open",
    "WireError",
    "decode",
    "encode",
    "find",
    "is_ours",
    "pack",
    "unpack",
]
