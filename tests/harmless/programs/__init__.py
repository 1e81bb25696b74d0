"""The programs, by their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.harmless.trial import Training, Trial

Make = Callable[[Trial], Training]


class Program(NamedTuple):
    """A small training.

    Attributes:
        name: of it.
        kind: of programs that it is one of; a heading of the table.
        title: one line for people.
        make: makes its objects.
        ranks: how many it has.
        run: for a framework that has the loop; then nothing is made.
        libraries: that it needs besides PyTorch.
        is_copied: ranks hold parts of their own, so that copies of the state are made ahead of faults.
    """

    name: str
    kind: str
    title: str
    make: Make | None
    ranks: int = 1
    run: Callable[[Trial], Any] | None = None
    libraries: tuple[str, ...] = ()
    is_copied: bool = False


PROGRAMS: dict[str, Program] = {}


def _title(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().split("\n")[0].rstrip(".")


def add(program: Program) -> None:
    """Add a program."""
    assert program.name not in PROGRAMS, program.name
    PROGRAMS[program.name] = program


def program(
    kind: str, *, ranks: int = 1, libraries: tuple[str, ...] = (), is_copied: bool = False
) -> Callable[[Make], Make]:
    """Add a program by the function that makes its objects; its docstring is the title."""

    def added(make: Make) -> Make:
        title = _title(make)
        add(Program(make.__name__, kind, title, make, ranks, libraries=libraries, is_copied=is_copied))
        return make

    return added


def framework(*, libraries: tuple[str, ...]) -> Callable[[Callable[[Trial], Any]], Callable[[Trial], Any]]:
    """Add a program whose loop is a framework's."""

    def added(run: Callable[[Trial], Any]) -> Callable[[Trial], Any]:
        add(Program(run.__name__, "frameworks", _title(run), None, run=run, libraries=libraries))
        return run

    return added


def find(name: str) -> Program:
    """Return a program by its name; ``recipe:`` before the text of a `Recipe` makes one."""
    if name in PROGRAMS:
        return PROGRAMS[name]
    from tests.harmless.recipes import Recipe, make  # noqa: PLC0415 - few runs need it

    recipe = Recipe(**json.loads(name.removeprefix("recipe:")))
    return Program(name, "generated", name, make(recipe))


def load() -> dict[str, Program]:
    """Return all programs."""
    from tests.harmless.programs import (  # noqa: F401, PLC0415 - they add themselves
        averages,
        frameworks,
        loops,
        modules,
        optimizers,
        ranks,
    )

    return PROGRAMS
