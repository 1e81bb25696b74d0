"""System calls that are noted, or fail when a test wants them to."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

Calls = list[str]


def fail(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, times: int = 1, *, done: bool = False
) -> None:
    """Have a call fail so many times.

    Args:
        monkeypatch: undoes it.
        name: of the call in `os`.
        code: of the error.
        times: how often; the calls after that go well.
        done: whether it is done all the same, as when a reply is lost.
    """
    real, left = getattr(os, name), [times]

    def call(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            return real(*arguments, **options)
        left[0] -= 1
        if done:
            real(*arguments, **options)
        raise OSError(code, os.strerror(code), "private")

    monkeypatch.setattr(os, name, call)


def note(monkeypatch: pytest.MonkeyPatch, *names: str) -> Calls:
    """Return a list that gets the names of calls in `os`, in order; of fsync also what it is for."""
    made: Calls = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            is_directory = name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
            of_what = (" directory" if is_directory else " file") if name == "fsync" else ""
            made.append(f"{name}{of_what}")
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in names:
        wrap(name)
    return made
