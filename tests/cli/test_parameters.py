"""Plain command lines, which are read without typer."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from hpc_elastic.cli.commands import function_of
from hpc_elastic.cli.parameters import plain_values
from hpc_elastic.cli.typer_app import app_for

PLAIN = [
    "status",
    "status R",
    "status R --timeline",
    "status --timeline R",
    "timeline R",
    "logs R -f",
    "logs --rank 0 R --node=n1 -n 0",
    "logs R --lines=7 --follow --attempt 2",
    "logs R --node=",
    "stop R",
    "cancel R",
    "scale R --nodes 3",
    "scale R -N 3 --keep-spares",
]
NOT_PLAIN = [
    "status --help",
    "status R S",
    "status --timelin R",
    "status --timeline=yes R",
    "status R --timeline --timeline",
    "timeline",
    "logs R -fn 5",
    "logs R --rank -1",
    "logs R --rank=-1",
    "logs R --rank one",
    "logs R --node",
    "logs R -n5",
    "logs R -- train.py",
    "scale R",
    "scale R --nodes three",
    "drill R --worker",
]


def _read(line: str) -> dict[str, Any] | None:
    name, *words = line.split(" ")
    return plain_values(function_of(name), words)


def _by_typer(line: str) -> dict[str, Any]:
    """Return what typer gives to the command of a line."""
    words = line.split(" ")
    command = typer.main.get_command(app_for(words)).commands[words[0]]  # type: ignore[attr-defined]
    values: dict[str, Any] = command.make_context(words[0], words[1:]).params
    return values


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_what_it_means_to_typer(line: str) -> None:
    """Whoever reads the line, the command gets the same values; what is left out has its default."""
    read = _read(line)
    assert read is not None
    everything = _by_typer(line)
    defaults = [None, False, 100]
    assert read == {name: everything[name] for name in read}
    assert all(value in defaults for name, value in everything.items() if name not in read)


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_any_other_line_is_left_to_typer(line: str) -> None:
    """Help, slips and forms that are rare get typer's answer."""
    assert _read(line) is None


def test_a_switch_that_is_abbreviated_together_with_another_flag_is_understood() -> None:
    """What this reader leaves to typer is not lost."""
    assert {"follow": True, "lines": 5} == {
        name: value for name, value in _by_typer("logs R -fn 5").items() if name in ("follow", "lines")
    }
