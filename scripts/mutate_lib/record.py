"""Notes which lines of the package run, also in programs that the tests start.

A copy of this file stands in the environment of the tree under test, as ``mutate_record``, and each Python
that starts there imports it. Without the file ``.mutate-record`` in the tree it does nothing.
Each line has two bytes in a file that all processes map: a process that is killed loses nothing. The first
byte is for the process of the tests and its forks, the other one for programs that the tests start.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SETTINGS = ".mutate-record"
_Tracer = Callable[[FrameType, str, Any], Callable[..., Any] | None]
_started: list[_Tracer] = []
_elsewhere: list[int] = []  # how far the other byte is from the first; empty in the process of the tests


def start(tree: str) -> None:
    """Note from now on which lines run, if the tree says where."""
    try:
        with open(os.path.join(tree, SETTINGS), encoding="utf-8") as file:
            settings = json.load(file)
        seen = open_map(settings["map"])
    except FileNotFoundError:
        return
    _elsewhere.append(len(seen) // 2)
    tracers = {
        os.path.join(tree, path): _tracer_of_lines(seen, first) for path, first in settings["firsts"].items()
    }

    def trace(frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        tracer = tracers.get(frame.f_code.co_filename)
        return None if tracer is None else tracer(frame, "line", None)

    _started.append(trace)
    threading.settrace(trace)
    sys.settrace(trace)


def resume() -> None:
    """Note lines again: Python stops once the tracer fails, as where a recursion is too deep."""
    if _started:
        sys.settrace(_started[0])


def is_process_of_tests() -> None:
    """Note lines from now on as those of the tests themselves."""
    _elsewhere.clear()


def open_map(path: str) -> mmap.mmap:
    """Return the bytes of all lines, shared with all processes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _tracer_of_lines(seen: mmap.mmap, first: int) -> Callable[..., Any]:
    """Return what notes the lines of one file, whose line 0 would have the byte `first`."""

    def trace(frame: FrameType, event: str, _arg: Any) -> Callable[..., Any]:
        if event == "line":
            seen[sum(_elsewhere, first + (frame.f_lineno or 0))] = 1
        return trace

    return trace


if __name__ == "mutate_record":  # in the tree; see TREE_OF_ENVIRONMENT in tree.py for the levels
    start(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4)))
