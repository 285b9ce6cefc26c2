"""What two servers must agree on before one may write into the other's memory."""

from dataclasses import dataclass, fields

from smartgen.core.geometry import KVGeometry
from smartgen.core.ids import Mode

_REMEDY = {
    "product_version": "install the same smartgen version on both servers",
    "wire_version": "install the same smartgen version on both servers",
    "mode": "start both servers with the same --smartgen-mode",
    "page_size": "start both servers with the same --page-size",
    "model": "start both servers with the same --model-path",
    "dtype": "start both servers with the same --dtype and --kv-cache-dtype",
    "layers": "start both servers with the same model and pipeline layout",
    "page_bytes": "start both servers with the same model, --dtype, --kv-cache-dtype and --tp-size",
}


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One server's answer to "what are you?". `page_bytes` as in KVGeometry."""

    product_version: str
    wire_version: int
    mode: Mode
    page_size: int
    model: str
    dtype: str
    layers: int
    page_bytes: tuple[int, ...]

    @property
    def geometry(self) -> KVGeometry:
        return KVGeometry(layers=self.layers, page_size=self.page_size, page_bytes=self.page_bytes)

    def mismatch(self, other: "Identity") -> str | None:
        """None when both fit; else one sentence: field, both values ("here" is self), remedy."""
        for field in fields(self):
            here, there = getattr(self, field.name), getattr(other, field.name)
            if here != there:
                return (
                    f"{field.name} differs: {_shown(here)} here, {_shown(there)} on the peer; "
                    f"{_REMEDY[field.name]}"
                )
        return None


def _shown(value: object) -> str:
    if isinstance(value, Mode):
        return value.value
    if isinstance(value, tuple):
        return f"{len(value)} entries of {_distinct(value)} bytes"
    return str(value)


def _distinct(sizes: tuple[int, ...]) -> str:
    kinds = sorted(set(sizes))
    if len(kinds) > 3:
        return f"{kinds[0]}..{kinds[-1]}"
    return "/".join(str(size) for size in kinds)
