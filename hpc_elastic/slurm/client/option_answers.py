"""Which options sbatch takes that its help does not list, by what it says of a command line. Pure.

Each version of Slurm takes some (``--hint``, ``--segment``). sbatch reads its command line before it looks
for a script, so it can be asked with an empty one: nothing is queued. It also takes the beginning of a name
for the name; its words then tell the whole one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

_NAMED = re.compile(r"option '--([a-z0-9-]+)' (?:requires|doesn't allow) an argument")
_UNKNOWN = re.compile(r"unrecognized option|option '\S+' is ambiguous")
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def taken(asked: Iterable[str], listed: Collection[str], complaint: Callable[[str], str]) -> frozenset[str]:
    """Return those of some long names that sbatch takes.

    Args:
        asked: the names.
        listed: those in its help.
        complaint: runs sbatch with one word and an empty script, and returns what it says.
    """
    unlisted = (name for name in asked if name not in listed and _NAME.fullmatch(name))
    return frozenset(name for name in unlisted if _takes(name, listed, complaint))


def _takes(name: str, listed: Collection[str], complaint: Callable[[str], str]) -> bool:
    # with a value first: --external=x is refused, while --external alone would need no script
    for word in (f"--{name}=x", f"--{name}"):
        said = complaint(word)
        if _UNKNOWN.search(said):
            return False
        if found := _NAMED.search(said):
            return found[1] == name
    return not any(other.startswith(name) for other in listed)  # may have a value, and so says nothing
