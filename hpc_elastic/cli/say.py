"""All output of the commands goes through here, so that no name or reason acts on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hpc_elastic.errors import InputError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.text import visible, visible_lines, wrapped

_COLOURS = {"red": 31, "green": 32, "yellow": 33}
_BOLD = "\x1b[1m"
_OF_A_RUN = ("RUN", "run_dir")  # how errors about a run name their place by themselves


def say(text: str = "", *, err: bool = False) -> None:
    """Print lines for people; a character that would act on a terminal is shown as an escape.

    Args:
        text: without its last line end.
        err: to stderr instead of stdout.
    """
    _write(visible_lines(text) + "\n", err=err)


def say_aside(text: str) -> None:
    """Print lines to stderr, for people."""
    say(text, err=True)


def say_fact(label: str, text: str) -> None:
    """Print a fact behind its label, as `fitting` puts it."""
    for line in fitting(visible(text), f"  {label:<12}", " " * 14):
        say(line)


def fitting(text: str, first: str, others: str) -> list[str]:
    """Return a text as one line, for a terminal as lines of 80 columns.

    Args:
        text: one line.
        first: the begin of the first line.
        others: the begin of each further line.
    """
    return wrapped(text, first, others) if sys.stdout.isatty() else [first + text]


def say_in_colour(text: str, colour: str | None, *, bold: bool = False) -> None:
    """Print lines for people in a colour, where stdout is a terminal and NO_COLOR is not set."""
    shown = visible_lines(text)
    _write((in_colour(shown, colour, bold=bold) if sys.stdout.isatty() else shown) + "\n")


def in_colour(text: str, colour: str | None, *, bold: bool = False) -> str:
    """Return a text with the escapes of a colour; unchanged if NO_COLOR is set."""
    start = f"\x1b[{_COLOURS[colour]}m" if colour is not None else ""
    start += _BOLD if bold else ""
    is_plain = not start or os.environ.get("NO_COLOR")  # noqa: TID251 - the user's choice for all programs
    return text if is_plain else f"{start}{text}\x1b[0m"


def hand_out(text: str) -> None:
    """Print text for programs, to the byte; a terminal gets it as `say` prints it.

    Args:
        text: with its last line end.
    """
    if sys.stdout.isatty():
        _write(visible_lines(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()


def complain(message: str, fix: str = "") -> int:
    """Print an error with its fix, and return the exit code of a command that was used wrongly."""
    text = message if not fix or "\n  fix: " in message else f"{message}\n  fix: {fix}"
    say(f"error: {text}", err=True)
    return ExitCode.USAGE


@contextmanager
def named(place: str) -> Iterator[None]:
    """Have errors about a run name the place where the user has given it.

    Args:
        place: an argument or a flag.
    """
    try:
        yield
    except InputError as error:
        if error.where in _OF_A_RUN:
            error.where = place
        raise


def _write(text: str, *, err: bool = False) -> None:
    print(text, end="", file=sys.stderr if err else sys.stdout, flush=True)
