"""What came of a call, in a form that JSON can say."""

from __future__ import annotations

import inspect
from typing import Any


def outcome(call: Any) -> Any:
    """Return what a call returns, or the error it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - that is the outcome
        return [type(error).__name__, str(error)]


def error_type(call: Any) -> str:
    """Return the name of the error a call raises."""
    return str(outcome(call)[0])


def _parameters(function: Any) -> list[list[str]]:
    """Return names and defaults of what can be passed by position."""
    return [
        [one.name, repr(one.default)]
        for one in inspect.signature(function).parameters.values()
        if one.kind is not one.KEYWORD_ONLY
    ]


def signatures(module: Any, names: list[str]) -> dict[str, Any]:
    """Return names and defaults of what can be passed by position to functions of a module."""
    found: dict[str, Any] = {}
    for name in names:
        thing = module
        for part in name.split("."):
            thing = getattr(thing, part)
        found[name] = _parameters(thing)
    return found
