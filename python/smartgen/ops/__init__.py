"""Tensor operators of SmartGen: paged attention, the merge of partial results, selection, and layer helpers.

Each operator is a short torch function in `reference`, which defines what it means; backends offer the same
signatures. `backend("auto")` picks one, `backend("cpu")` insists. How far a backend may differ from the
reference is said in `tolerances`, once. This package imports torch, and nothing of SmartGen but `smartgen.core`.
"""

from smartgen.ops.backends import FEW_ROWS, Backend, backend
from smartgen.ops.reference import merge
from smartgen.ops.tolerances import TOLERANCES, Tolerance

__all__ = ["FEW_ROWS", "TOLERANCES", "Backend", "Tolerance", "backend", "merge"]
