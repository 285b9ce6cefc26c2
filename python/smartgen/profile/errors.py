"""The one exception of this package."""


class ProfileError(ValueError):
    """A profile that cannot be used: `source: cause; remedy` in one sentence.

    source  the file, or what stands for it when the bytes came from elsewhere
    """

    def __init__(self, source: str, cause: str, remedy: str) -> None:
        super().__init__(f"{source}: {cause}; {remedy}")
        self.source = source
        self.cause = cause
        self.remedy = remedy
