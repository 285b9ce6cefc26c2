"""The error of the machines: an event that came when it must not."""

from collections.abc import Iterable

from smartgen.core import RequestKey

Story = Iterable[tuple[float, str, str]]  # (at, event, state after it)


class IllegalEvent(RuntimeError):
    """An event the state forbids. The machine did not change; the text carries its story."""

    def __init__(self, key: RequestKey, state: str, event: object, why: str, story: Story) -> None:
        lines = [f"  {at:.6f} {what} -> {after}" for at, what, after in story]
        text = f"request {key}: {type(event).__name__} in state {state}: {why}"
        super().__init__("\n".join([text, *lines]))
        self.key = key
        self.why = why
