"""Every message the two servers exchange beside the host's own.

Messages are values: frozen, numbered, append-only. A tag never changes its meaning and is never
used again; a changed layout is a new tag or a new WIRE_VERSION. Bounds stand in the types, so
they hold on both sides.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from smartgen.core import Identity, Mode, Path, RequestKey, Run

WIRE_VERSION: Final = 1
MAX_RUNS: Final = 8192
MAX_REASON: Final = 512

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Big = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Small = Annotated[int, Meta(ge=0, le=255)]
Text = Annotated[str, Meta(max_length=MAX_REASON)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
RunPair = tuple[Count, Count]


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages. `validate` checks what types cannot say; it raises ValueError."""

    def validate(self) -> None:
        return None


class Hello(Message, frozen=True, array_like=True):
    """Both directions, once per pair: what the sender is. Compare with `Identity.mismatch`."""

    product_version: Text
    wire_version: Small
    mode: Text
    page_size: Positive
    model: Text
    dtype: Text
    layers: Positive
    page_bytes: Annotated[tuple[Positive, ...], Meta(max_length=4096)]

    @classmethod
    def of(cls, identity: Identity) -> "Hello":
        return cls(
            product_version=identity.product_version,
            wire_version=identity.wire_version,
            mode=identity.mode.value,
            page_size=identity.page_size,
            model=identity.model,
            dtype=identity.dtype,
            layers=identity.layers,
            page_bytes=identity.page_bytes,
        )

    @property
    def identity(self) -> Identity:
        return Identity(
            product_version=self.product_version,
            wire_version=self.wire_version,
            mode=Mode.parse(self.mode),
            page_size=self.page_size,
            model=self.model,
            dtype=self.dtype,
            layers=self.layers,
            page_bytes=self.page_bytes,
        )

    def validate(self) -> None:
        Mode.parse(self.mode)


class _Keyed(Message, frozen=True, array_like=True):
    room: Big
    epoch: Big

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.room, self.epoch)


class Open(_Keyed, frozen=True, array_like=True):
    """Decode to prefill, with the request's metadata: pages are ready for this key."""

    mode: Text
    total_pages: Count

    @classmethod
    def of(cls, key: RequestKey, mode: Mode, total_pages: int) -> "Open":
        return cls(key.room, key.epoch, mode.value, total_pages)

    def validate(self) -> None:
        Mode.parse(self.mode)


class Landed(_Keyed, frozen=True, array_like=True):
    """Prefill to decode: these positions of this layer are in place. Runs rise and are disjoint."""

    layer: Count
    runs: Annotated[tuple[RunPair, ...], Meta(min_length=1, max_length=MAX_RUNS)]

    @classmethod
    def of(cls, key: RequestKey, layer: int, runs: tuple[Run, ...]) -> "Landed":
        return cls(key.room, key.epoch, layer, runs)

    def validate(self) -> None:
        end = -1
        for start, stop in self.runs:
            if start <= end or stop <= start:
                raise ValueError("runs must rise, be disjoint and not be empty")
            end = stop


class Delivered(_Keyed, frozen=True, array_like=True):
    """Prefill to decode, before the host's success: everything was acknowledged.

    bytes_by_path  (path number, bytes) pairs
    transfer_us    first write submitted to last write acknowledged
    total_pages    positions of the request; each of its layers has all of them
    resent_bytes   bytes sent a second time because a source page was replaced
    """

    bytes_by_path: Annotated[tuple[tuple[Small, Big], ...], Meta(max_length=16)]
    transfer_us: Big
    total_pages: Count
    resent_bytes: Big

    @classmethod
    def of(
        cls,
        key: RequestKey,
        *,
        bytes_by_path: tuple[tuple[Path, int], ...],
        transfer_us: int,
        total_pages: int,
        resent_bytes: int,
    ) -> "Delivered":
        pairs = tuple((int(path), count) for path, count in bytes_by_path)
        return cls(key.room, key.epoch, pairs, transfer_us, total_pages, resent_bytes)


class Fallback(_Keyed, frozen=True, array_like=True):
    """Prefill to decode: this request goes by the host's full transfer."""

    reason: Text

    @classmethod
    def of(cls, key: RequestKey, reason: str) -> "Fallback":
        return cls(key.room, key.epoch, reason[:MAX_REASON])


class Close(_Keyed, frozen=True, array_like=True):
    """Either direction: nothing more will be said about this key."""

    reason: Text

    @classmethod
    def of(cls, key: RequestKey, reason: str) -> "Close":
        return cls(key.room, key.epoch, reason[:MAX_REASON])


TAGS: Final[dict[int, type[Message]]] = {
    1: Hello,
    2: Open,
    3: Landed,
    4: Delivered,
    5: Fallback,
    6: Close,
}
TAG_OF: Final[dict[type[Message], int]] = {kind: tag for tag, kind in TAGS.items()}
DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Message]]] = {
    tag: msgspec.msgpack.Decoder(kind) for tag, kind in TAGS.items()
}
