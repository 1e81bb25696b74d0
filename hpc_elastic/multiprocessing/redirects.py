"""Send this process's own standard streams to a file for a while (names as in torch)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

__all__ = ["redirect", "redirect_stderr", "redirect_stdout"]

_STREAMS: Final = {"stdout": 1, "stderr": 2}
_LIBC: Final = ctypes.CDLL(None)


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Send a stream to a file: the output of Python, C code and child processes.

    Args:
        std: ``stdout`` or ``stderr``.
        to_file: overwritten if it exists; its directory must exist.

    Raises:
        ValueError: another stream.
    """
    if std not in _STREAMS:
        raise ValueError(f"unknown standard stream <{std}>, must be one of {set(_STREAMS)}")
    fd = _descriptor(std)
    with open(to_file, "w+b") as file:
        before = os.dup(fd)
        try:
            _switch(std, file.fileno(), fd)
            try:
                yield
            finally:
                _switch(std, before, fd)
        finally:
            os.close(before)


redirect_stdout = partial(redirect, "stdout")
redirect_stderr = partial(redirect, "stderr")


def _descriptor(std: str) -> int:
    try:
        return int(getattr(sys, std).fileno())
    except (AttributeError, OSError, ValueError):  # replaced by an object without one
        return _STREAMS[std]


def _switch(std: str, source: int, target: int) -> None:
    """Let a descriptor mean another file once all that was printed before is written."""
    _LIBC.fflush(None)
    stream = getattr(sys, std)
    if stream is not None:
        stream.flush()
    os.dup2(source, target)
