"""Mutants that nobody can tell from the code as it is, each with the reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mutate_lib.mutants import Mutant, Source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE = "tests/mutation/equivalent.toml"


class Equivalent(NamedTuple):
    """An explained mutant.

    Attributes:
        module: dotted, without the package.
        scope: function in it.
        before: the code, as `mutants.Mutant` has it.
        after: the same with the fault.
        reason: why nobody can tell the two apart.
    """

    module: str
    scope: str
    before: str
    after: str
    reason: str


def parse(text: str) -> list[Equivalent]:
    """Return the explained mutants of the text of `FILE`.

    Raises:
        ValueError: an entry has other fields than `Equivalent`, or no reason.
    """
    found = []
    for entry in tomllib.loads(text).get("equivalent", []):
        if set(entry) != set(Equivalent._fields) or not entry["reason"].strip():
            raise ValueError(f"{FILE}: an entry needs {', '.join(Equivalent._fields)}, and has {entry}")
        found.append(Equivalent(**entry))
    return found


def reason_for(mutant: Mutant, explained: Iterable[Equivalent]) -> str | None:
    """Return why a mutant is equivalent, or None."""
    key = (mutant.module, mutant.scope, mutant.before, mutant.after)
    return next((one.reason for one in explained if one[:4] == key), None)


def stale(explained: Sequence[Equivalent], sources: Iterable[Source]) -> list[Equivalent]:
    """Return the explained mutants that cannot be made of their modules any more."""
    there = {source.key(change) for source in sources for change in source.changes}
    return [one for one in explained if one[:4] not in there]
