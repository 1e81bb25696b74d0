"""The lines that agents write about the work of a round. Pure.

The first two nodes of each round write, each into a file of its own (``account/<node>.log``): when the
workers were started, when they had imported hpc_elastic, how far they are now and then, and when they
were gone. All ranks of a round take their steps together, so the lines of one node tell of all. The
second node's lines stand in where the first is lost with its last lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from hpc_elastic.errors import DamagedError
from hpc_elastic.typed_json import Count, Prose, Seconds, read

LEAST_GAP_S = 5.0  # between two lines about steps
GAP_SHARE = 0.1  # of the time since the first step: a long round has no more lines than 10 per e-fold


class Doing(str, Enum):
    """The subject of a line: the state of the workers of a round."""

    STARTED = "started"  # their processes have been started
    IMPORTED = "imported"  # one has attached to its agent, with its imports done
    STEP = "step"  # a step is done; the first line of a round tells of its first step
    GONE = "gone"  # none is left


class WorkFact(NamedTuple):
    """One line, written by one agent."""

    round: Count
    doing: Doing
    at: float  # wall time of the writer [s since the epoch]
    mono: Seconds  # its monotonic time [s]: spans between lines of one agent hold over steps of its clock
    agent: Prose  # id of the agent
    known: Count  # number of the newest journal record that it had read
    step: Count | None = None  # the newest one that is done
    saving_s: Seconds = 0.0  # for how long the loop has stood still for saves in this round
    total: Count | None = None  # steps of the whole run


class _WorkLine(NamedTuple):
    """The JSON form of a fact, short because there are many."""

    r: Count
    d: Doing
    t: float
    m: Seconds
    a: Prose
    k: Count
    s: Count | None = None
    v: Seconds = 0.0
    n: Count | None = None


def next_gap_s(since_first_s: float) -> float:
    """Return when the next step is worth a line [s].

    Args:
        since_first_s: how long ago the first step of the round was done [s].
    """
    return max(LEAST_GAP_S, GAP_SHARE * since_first_s)


def encode_fact(fact: WorkFact) -> bytes:
    """Return a fact as one line."""
    line = _WorkLine(*fact)._asdict() | {"t": round(fact.at, 3), "m": round(fact.mono, 3)}
    for key in [key for key in "sn" if line[key] is None]:
        del line[key]
    saving_s = round(fact.saving_s, 3)
    if saving_s:
        line["v"] = saving_s
    else:
        del line["v"]
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def parse_facts(data: bytes) -> list[WorkFact]:
    """Return the facts in a file; lines that are torn or damaged are left out."""
    found = []
    for line in data.splitlines():
        try:
            found.append(WorkFact(*read(_WorkLine, line)))
        except (DamagedError, ValueError):
            continue
    return found


def of_one_writer(facts: Iterable[WorkFact]) -> dict[int, list[WorkFact]]:
    """Return the lines of each round that tell most of it, all by one agent, in the order of its clock.

    Those of an agent that saw the end of the workers come first, then those that go on for longest.

    Args:
        facts: of all files.
    """
    rounds: dict[int, dict[str, list[WorkFact]]] = {}
    for fact in facts:
        rounds.setdefault(fact.round, {}).setdefault(fact.agent, []).append(fact)
    best: dict[int, list[WorkFact]] = {}
    for number in sorted(rounds):
        ordered = [sorted(lines, key=lambda fact: fact.mono) for lines in rounds[number].values()]
        best[number] = max(ordered, key=_worth)
    return best


def _worth(lines: Sequence[WorkFact]) -> tuple[bool, float, int]:
    return lines[-1].doing is Doing.GONE, lines[-1].mono - lines[0].mono, len(lines)
