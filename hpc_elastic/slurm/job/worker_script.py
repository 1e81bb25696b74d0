"""The script that a worker's command runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpc_elastic.isolated.argv import CALL

_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*")
_SHELLS = ("bash", "sh")
TAKES_A_WORD = ("-X", "-W", "--check-hash-based-pycs")
_NO_SCRIPT = re.compile(r"-[a-zA-Z]*[cm].*")


def script_of(command: Sequence[str]) -> str | None:
    """Return the script that an interpreter is given, None if there is none."""
    if not _is_interpreter(command[0]):
        return None
    words = iter(command[1:])
    for word in words:
        if word in TAKES_A_WORD:
            next(words, None)
        elif word in ("-", "--help") or _NO_SCRIPT.fullmatch(word):
            return None
        elif not word.startswith("-"):
            return word
    return None


def title_of(command: Sequence[str]) -> str:
    """Return what a command runs, for people: the script's or module's name, not that of its interpreter."""
    script = script_of(command)
    if script is None and _is_interpreter(command[0]) and "-m" in command[1:-1]:
        script = command[command.index("-m", 1) + 1]
    if script is None and command[-1] == CALL:
        return CALL
    return (script or command[0]).rpartition("/")[2]


def _is_interpreter(program: str) -> bool:
    name = program.rpartition("/")[2]
    return _INTERPRETER.fullmatch(name) is not None or name in _SHELLS
