"""What can go wrong while selecting. All of it is an error of input, never of a request's data."""


class SelectError(ValueError):
    """A selector, score or budget that cannot be used; the message names it and the remedy."""


class UnknownSelector(SelectError):
    """No built-in and no plugin has this name; the message lists those that exist."""


class MissingEvidence(SelectError):
    """A selector asked for something that was not gathered for this request."""

    def __init__(self, evidence: str) -> None:
        super().__init__(
            f"{evidence} was not gathered for this request; "
            "use a selector that does not need it, or gather it"
        )
        self.evidence = evidence
