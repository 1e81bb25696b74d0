"""What the commands print goes through here, so that no name or reason acts on the terminal."""

from __future__ import annotations

import sys

import typer

from hpc_elastic.text import visible_lines


def say(text: str = "", *, err: bool = False) -> None:
    """Print lines for people; what would act on a terminal is shown as an escape.

    Args:
        text: without its last line end.
        err: to stderr instead of stdout.
    """
    typer.echo(visible_lines(text), err=err)


def say_aside(text: str) -> None:
    """Print lines to stderr, for people."""
    say(text, err=True)


def say_in_colour(text: str, colour: str | None, *, bold: bool = False) -> None:
    """Print lines for people in a colour, where stdout is a terminal."""
    typer.echo(typer.style(visible_lines(text), fg=colour, bold=bold))


def hand_out(text: str) -> None:
    """Print what a program may read, to the byte; a terminal gets it as `say` prints it.

    Args:
        text: with its last line end.
    """
    if sys.stdout.isatty():
        typer.echo(visible_lines(text), nl=False)
    else:
        typer.echo(text.encode("utf-8", "surrogateescape"), nl=False)
