"""Slips in the words of a worker's command: quotes, variables and options that are out of place. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hpc_elastic.errors import InputError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_LINE = re.compile(r".*\S\s+\S.*", re.DOTALL)


def check(command: Sequence[str]) -> None:
    """Refuse a command whose first word is no program, and no file that is there.

    Raises:
        InputError: with the words to write instead.
    """
    first, rest = command[0], list(command[1:])
    if _ASSIGNMENT.fullmatch(first):
        _refuse_variables(command)
    if first == "-m" or first.startswith("--module"):
        module = rest[:1] if "=" not in first else [first.partition("=")[2]]
        behind = rest[1:] if "=" not in first else rest
        line = shlex.join(["-m", *(module or ["MODULE"]), *(["--", *behind] if behind else [])])
        raise InputError(
            f"the worker command begins with the option {first}",
            where="command",
            fix=f"-m goes before --: hpc-elastic submit {line}",
        )
    if _LINE.fullmatch(first):
        raise InputError(
            f"the worker command is one word, {first!r}, so the whole of it names a program",
            where="command",
            fix=f"take the quotes away: -- {shlex.join([*_words(first), *rest])}",
        )


def _refuse_variables(command: Sequence[str]) -> None:
    count = next((at for at, word in enumerate(command) if not _ASSIGNMENT.fullmatch(word)), len(command))
    flags = [word for assignment in command[:count] for word in ("-e", assignment)]
    line = shlex.join(["hpc-elastic", "submit", *flags, "--", *(command[count:] or ["train.py"])])
    raise InputError(
        f"{command[0]} sets a variable, and is no program",
        where="command",
        fix=f"variables of the workers are given by -e, before --: {line}",
    )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
