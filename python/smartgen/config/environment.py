"""This process's environment: the one place that reads or changes it.

Commands and instruments, where a process begins, may hand the whole of it on as a value.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def variable(name: str) -> str | None:
    """Its value, None where it is unset."""
    return os.environ.get(name)


def set_variable(name: str, value: str) -> None:
    """For this process and those it starts."""
    os.environ[name] = value


def provide_variables(values: Mapping[str, str]) -> None:
    """The same, where the user has not set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


@contextmanager
def replaced_variable(name: str, value: str) -> Iterator[None]:
    """Set for the time of a `with` block, for a library that reads it meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
