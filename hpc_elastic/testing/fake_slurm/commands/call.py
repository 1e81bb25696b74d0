"""A call of one of the programs of a fake Slurm, and the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hpc_elastic.testing.fake_slurm.cluster.model import Job, World
from hpc_elastic.testing.fake_slurm.commands.options import Refusal
from hpc_elastic.testing.fake_slurm.schedule.schedule import find_jobs
from hpc_elastic.testing.fake_slurm.schedule.turn import Turn

INVALID_ID = "Invalid job id specified"
LOST = "Unable to contact slurm controller (connect failure)"


class Call(NamedTuple):
    """What somebody asks for."""

    program: str
    words: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str
    user: Mapping[str, str]  # USER, UID, GID
    stdin: str | None = None  # what was read of it; None as long as nothing was

    @property
    def uid(self) -> int:
        """Who asks."""
        return int(self.user["UID"])


class Reply(NamedTuple):
    """What the program prints, and its exit code."""

    out: str = ""
    err: str = ""
    code: int = 0


class NeedStdin(NamedTuple):
    """The program has to send its stdin first."""


Answer = Reply | NeedStdin
Command = Callable[[Turn, Call], Answer]


def split(words: Sequence[str], with_value: str) -> tuple[dict[str, str], list[str]]:
    """Split a query's words into options and the rest.

    Args:
        words: as people write them.
        with_value: options that take a value, as ``j:jobs o:format``; all others take none.

    Returns:
        Long names (or single letters) with their values, and the other words.
    """
    letters = dict(word.split(":") for word in with_value.split())
    names = set(letters.values())
    found: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = left.pop(0) if name in names and not equals and left else value
        elif word.startswith("-") and word != "-":
            _split_letters(word[1:], letters, left, found)
        else:
            rest.append(word)
    return found, rest


def _split_letters(word: str, letters: Mapping[str, str], left: list[str], found: dict[str, str]) -> None:
    while word:
        letter, word = word[0], word[1:]
        if letter in letters:
            found[letters[letter]] = word.removeprefix("=") if word else left.pop(0) if left else ""
            return
        found[letter] = ""


def jobs_named(world: World, text: str) -> list[Job]:
    """Return the jobs that a list such as ``12,13_1`` names.

    Raises:
        Refusal: one of them is not known.
    """
    found: list[Job] = []
    for word in _outside_brackets(text):
        jobs = find_jobs(world, word)
        if not jobs:
            raise Refusal(INVALID_ID)
        found += jobs
    return found


def _outside_brackets(text: str) -> list[str]:
    words, depth = [""], 0
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            words.append("")
        else:
            words[-1] += char
    return [word for word in words if word]
