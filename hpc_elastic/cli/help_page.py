"""The help of the program and of its commands; imported for help alone."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from hpc_elastic.cli.arguments import ARGUMENTS, OPTIONS_HEADING, CommandRow
from hpc_elastic.cli.say import say
from hpc_elastic.text import wrapped

FIRST: Final = (  # the settings of a job that the short help shows
    "nodes",
    "gpus_per_node",
    "workers_per_node",
    "exclusive",
    "time",
    "partition",
    "account",
    "setup",
    "run_dir",
    "preload",
)
_JOB: Final = "The job"  # heading of those settings
_LEAST, _MOST, _NARROW = 60, 100, 34  # columns: of a page, and of a column of names
_FRAME, _FRAME_OF_ASCII = "╭─╮│╰╯", "+-+|++"

Entry = tuple[str, str]  # the name of an argument as it is written, and its help
Groups = Sequence[tuple[str, Sequence[argparse.Action]]]  # arguments by headings


def show(lines: Sequence[str]) -> None:
    """Print the lines of a help."""
    say("\n".join(lines))


def page(
    command: CommandRow, usage: str, groups: Groups, more: Mapping[str, Sequence[Entry]], *, is_whole: bool
) -> list[str]:
    """Return the help of a command.

    Args:
        command: describes it.
        usage: its line of the usage.
        groups: its arguments by headings.
        more: further entries by headings.
        is_whole: with all settings of a job.
    """
    head = _head(usage, [command.summary, *filter(None, command.details.split("\n\n"))])
    if command.takes_job:
        return [*head, *(_sections(_panels(groups)) if is_whole else _short(usage, groups))]
    return [*head, *_framed({**_panels(groups), **more})]


def _panels(groups: Groups) -> dict[str, Sequence[Entry]]:
    return {heading: [entry_of(action) for action in actions] for heading, actions in groups}


def _short(usage: str, groups: Groups) -> list[str]:
    """Return the sections of a command that takes a job, with the most used settings alone."""
    own = (ARGUMENTS, OPTIONS_HEADING)
    of_job = {one.dest: one for heading, actions in groups if heading not in own for one in actions}
    first = [entry_of(of_job[name]) for name in FIRST]
    panels = _panels(groups)
    shown = {ARGUMENTS: panels[ARGUMENTS], _JOB: first, OPTIONS_HEADING: panels[OPTIONS_HEADING]}
    program = " ".join(usage.split(" ")[:2])
    return [*_sections(shown), "", f"{len(of_job) - len(first)} more options: {program} --help-all"]


def _head(usage: str, paragraphs: Sequence[str]) -> list[str]:
    lines = [f"Usage: {usage}", ""]
    for paragraph in paragraphs:
        lines += [*wrapped(paragraph, "  ", "  ", columns()), ""]
    return lines


def entry_of(action: argparse.Action) -> Entry:
    """Return the name of an argument with its value, and its help."""
    metavar, names = str(action.metavar or ""), action.option_strings
    if not names:
        return metavar, action.help or ""
    is_pair = len(names) > 1 and all(name.startswith("--") for name in names)
    shown = (" / " if is_pair else ", ").join(names)
    return (shown if action.nargs == 0 else f"{shown} {metavar}"), action.help or ""


def _sections(panels: Mapping[str, Sequence[Entry]]) -> list[str]:
    lines: list[str] = []
    for title, entries in panels.items():
        lines += [""] if lines else []
        lines += [f"{title}:", *(f"  {line}" for line in _columns_of(entries, columns() - 2))]
    return lines


def _framed(panels: Mapping[str, Sequence[Entry]]) -> list[str]:
    """Return the entries in frames, each with its heading."""
    left, bar, right, side, low_left, low_right = tuple(_FRAME if _shows_frames() else _FRAME_OF_ASCII)
    width, lines = columns(), []
    for title, entries in panels.items():
        lines.append(f"{left}{bar} {title} {bar * (width - len(title) - 5)}{right}")
        lines += [f"{side} {line:<{width - 4}} {side}" for line in _columns_of(entries, width - 4)]
        lines.append(f"{low_left}{bar * (width - 2)}{low_right}")
    return lines


def _columns_of(entries: Sequence[Entry], width: int) -> list[str]:
    """Return entries with their help in a column behind the names; below a name that is too long for it."""
    beside = [len(name) for name, _ in entries if len(name) <= _NARROW]
    indent = max(beside, default=2) + 2
    lines = []
    for name, text in entries:
        first = f"{name:<{indent}}"
        if len(name) > _NARROW:
            lines.append(name)
            first = " " * indent
        lines += wrapped(text, first, " " * indent, width)
    return lines


def _shows_frames() -> bool:
    try:
        _FRAME.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def columns() -> int:
    """Return the width of help; the standard library's way imports 8 ms worth of modules for it."""
    told = os.environ.get("COLUMNS", "")  # noqa: TID251 - the user's choice for all programs
    try:
        width = int(told) if told.isdecimal() and int(told) else os.get_terminal_size(1).columns - 1
    except OSError:
        width = 98
    return max(_LEAST, min(_MOST, width))


class RunFormatter(argparse.RawDescriptionHelpFormatter):
    """The help of the commands of the nodes: as torchrun's, each flag in one spelling."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=columns())
        set_colour = getattr(self, "_set_color", None)  # since Python 3.14
        if set_colour is not None:
            set_colour(False)  # `say` shows escapes as text

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        shown = ", ".join(name for name in action.option_strings if "_" not in name)
        return f"{shown} {action.metavar}" if action.nargs != 0 else shown
