"""The one exception of this package."""


class WireError(ValueError):
    """Bytes that are no message of this version. The text says why and never quotes the bytes."""
