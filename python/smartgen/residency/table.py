"""State of every (layer, page position) of one request.

    ABSENT -> QUEUED -> IN_FLIGHT -> RESIDENT
       |         ^-------'                ^
       '------------- land --------------'  (a receiver only learns that pages landed)

IN_FLIGHT means written and not yet known good; only from there may a page be queued again.
RESIDENT is final. A transition that finds one page in a wrong state raises and changes nothing.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from smartgen.core import Run, mask_runs


class Residency(IntEnum):
    ABSENT = 0
    QUEUED = 1
    IN_FLIGHT = 2
    RESIDENT = 3


class ResidencyError(RuntimeError):
    """A transition that the states forbid, or positions outside the table."""


class BlockTable:
    """uint8 [layers, pages], all ABSENT at first; `counts` is kept as the states change."""

    def __init__(self, *, layers: int, pages: int) -> None:
        self._states = np.zeros((layers, pages), dtype=np.uint8)
        self._counts = [layers * pages, 0, 0, 0]

    @property
    def layers(self) -> int:
        return int(self._states.shape[0])

    @property
    def pages(self) -> int:
        return int(self._states.shape[1])

    def count(self, state: Residency) -> int:
        """(layer, page) pairs in this state."""
        return self._counts[state]

    @property
    def complete(self) -> bool:
        """Every page of every layer is RESIDENT."""
        return self._counts[Residency.RESIDENT] == self._states.size

    def state(self, layer: int, position: int) -> Residency:
        return Residency(int(self._row(layer, Run(position, position + 1))[0]))

    def queue(self, layer: int, run: Run) -> None:
        self._move(layer, run, Residency.ABSENT, Residency.QUEUED)

    def launch(self, layer: int, run: Run) -> None:
        self._move(layer, run, Residency.QUEUED, Residency.IN_FLIGHT)

    def settle(self, layer: int, run: Run) -> None:
        self._move(layer, run, Residency.IN_FLIGHT, Residency.RESIDENT)

    def requeue(self, layer: int, run: Run) -> None:
        self._move(layer, run, Residency.IN_FLIGHT, Residency.QUEUED)

    def land(self, layer: int, run: Run) -> None:
        """The receiver's only transition: it does not see pages travel."""
        self._move(layer, run, Residency.ABSENT, Residency.RESIDENT)

    def runs(self, layer: int, state: Residency, *, within: Run | None = None) -> tuple[Run, ...]:
        """Runs of one layer that are in `state`, by default over all its pages."""
        run = Run(0, self.pages) if within is None else within
        return mask_runs(self._row(layer, run) == state, offset=run.start)

    def missing_runs(self, layer: int) -> tuple[Run, ...]:
        """Runs that are not RESIDENT."""
        return mask_runs(self._row(layer, Run(0, self.pages)) != Residency.RESIDENT)

    def check(self) -> None:
        """Assert that the counts are those of the states."""
        counted = np.bincount(self._states.ravel(), minlength=len(Residency)).tolist()
        assert counted == self._counts, f"counts {self._counts}, states hold {counted}"

    def _row(self, layer: int, run: Run) -> npt.NDArray[np.uint8]:
        layers, pages = self._states.shape
        if not (0 <= layer < layers and 0 <= run.start <= run.stop <= pages):
            raise ResidencyError(
                f"layer {layer}, pages {run.start}..{run.stop} are outside {layers} x {pages}"
            )
        return self._states[layer, run.start : run.stop]

    def _move(self, layer: int, run: Run, old: Residency, new: Residency) -> None:
        row = self._row(layer, run)
        if not (row == old).all():
            wrong = int(np.flatnonzero(row != old)[0])
            raise ResidencyError(
                f"layer {layer}, page {run.start + wrong} is {Residency(int(row[wrong])).name}, "
                f"must be {old.name} to become {new.name}"
            )
        row[:] = new
        self._counts[old] -= len(row)
        self._counts[new] += len(row)
