"""Inputs that are kept: one Python literal in a line, a file for each target."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

_SUFFIX = ".txt"


def read_inputs(directory: Path, target: str) -> list[Any]:
    """Return the kept inputs of a target, oldest first.

    Raises:
        ValueError: a line is no literal; names file and line.
    """
    path = directory / f"{target}{_SUFFIX}"
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not line.startswith("#"):
            found.append(_literal(line, f"{path}:{number}"))
    return found


def _literal(line: str, place: str) -> Any:
    try:
        return ast.literal_eval(line)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{place} is no literal: {error}") from None


def keep_input(directory: Path, target: str, value: Any) -> bool:
    """Add an input to those that are kept; return whether it is new."""
    if value in read_inputs(directory, target):
        return False
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{target}{_SUFFIX}").open("a", encoding="utf-8") as file:
        file.write(f"{value!a}\n")
    return True
