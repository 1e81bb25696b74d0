"""What is raised when something that must hold does not."""

from __future__ import annotations


class BrokenError(AssertionError):
    """Something that must hold does not.

    Args:
        promise: its short name.
        text: what is wrong.
    """

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(f"{promise}: {text}")
        self.promise = promise
