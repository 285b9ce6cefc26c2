"""What the lab says when it cannot be built."""


class LabError(Exception):
    """One sentence that names cause and remedy."""
