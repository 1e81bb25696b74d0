"""The traps of a shell script: which signals have which action. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hpc_elastic.named_tuple import NamedTuple

_TRAP = re.compile(
    r"\s*trap\s+(?:--\s+)?(\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"']+)((?:\s+(?:\w+|\"\w+\"|'\w+'))+)"
    r"\s*(?:#.*)?\Z",
    re.DOTALL,
)
_NAMES = {1: "HUP", 2: "INT", 3: "QUIT", 6: "ABRT", 9: "KILL", 10: "USR1", 12: "USR2", 15: "TERM", 24: "XCPU"}
_BY_NUMBER = {str(number): name for number, name in _NAMES.items()}  # of Linux on x86 and ARM
_NOTHING = ("", ":", "true")


class Trap(NamedTuple):
    """The commands that a shell runs at some signals.

    Attributes:
        action: the commands, without their quotes.
        signals: their names without SIG; EXIT, ERR and the like, too.
    """

    action: str
    signals: frozenset[str]

    @property
    def does_something(self) -> bool:
        """Whether it runs a command; ``trap - TERM`` takes a trap back, and ``trap '' TERM`` runs none."""
        return self.action not in ("-", *_NOTHING)


def signal_name(word: str) -> str:
    """Return the name of a signal without SIG; it may be a number."""
    name = word.upper().removeprefix("SIG")
    return _BY_NUMBER.get(name, name)


def trap_of(command: str) -> Trap | None:
    """Return the trap that a command of a shell sets; None if it sets none.

    Args:
        command: as it stands in the script.
    """
    found = _TRAP.match(command)
    if found is None:
        return None
    action = found[1][1:-1] if found[1][0] in "'\"" else found[1]
    return Trap(action.strip(), frozenset(signal_name(word.strip("\"'")) for word in found[2].split()))


def traps_at(signal: str, commands: Iterable[str]) -> Iterator[tuple[int, Trap]]:
    """Yield the traps of some commands that do something at a signal, each with the command's place.

    Args:
        signal: its name or number.
        commands: as they stand in the script.
    """
    name = signal_name(signal)
    for place, command in enumerate(commands):
        trap = trap_of(command)
        if trap is not None and trap.does_something and name in trap.signals:
            yield place, trap
