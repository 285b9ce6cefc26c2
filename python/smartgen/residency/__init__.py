"""What of a request is where: one table, one state per (layer, page)."""

from smartgen.residency.table import BlockTable, Residency, ResidencyError

__all__ = ["BlockTable", "Residency", "ResidencyError"]
