"""The physical limits of a transfer, to stand beside what was measured.

All count from the request's first forward pass to its second token.
"""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """
    prefill_s  all of the prompt's forward passes
    move_s     all of its KV over the link alone
    step_s     one decode step
    chunks     forward passes of equal size; a chunk's KV may move while the next is computed
    """

    prefill_s: float
    move_s: float
    step_s: float
    layers: int
    chunks: int = 1

    @property
    def colocated_s(self) -> float:
        return self.prefill_s + self.step_s

    @property
    def layerwise_s(self) -> float:
        return self._last_part_of(self.layers * self.chunks)

    @property
    def full_s(self) -> float:
        return self._last_part_of(self.chunks)

    def _last_part_of(self, parts: int) -> float:
        """Each part leaves when it is computed, so at best the last alone outlasts prefill."""
        hidden = self.prefill_s * (parts - 1) / parts
        return self.prefill_s + max(self.move_s - hidden, self.move_s / parts) + self.step_s

    def as_dict(self) -> dict[str, float]:
        own = {name: float(value) for name, value in asdict(self).items()}
        return {
            **own,
            "colocated_s": self.colocated_s,
            "layerwise_s": self.layerwise_s,
            "full_s": self.full_s,
        }
