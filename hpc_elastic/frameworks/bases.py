"""Classes whose base is a framework's, which is loaded when the first object is made."""

from __future__ import annotations

import functools
from typing import Any


def become(made: object, base: type) -> None:
    """Have an object be a `base` as well, whose methods stand in for those that its own class lacks."""
    kind: Any = type(made)
    made.__class__ = _with_base(kind, base)


@functools.cache
def _with_base(kind: type, base: type) -> type:
    if issubclass(kind, base):
        return kind
    words = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, base), words)
