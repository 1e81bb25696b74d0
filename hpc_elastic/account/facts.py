"""The lines that agents write about the work of a round. Pure.

The first two nodes of each round write, each into a file of its own (``account/<node>.log``): when the
workers were started, when they had imported hpc_elastic, how far they are now and then, and when they
were gone. All ranks of a round take their steps together, so the lines of one node tell of all. The
second node's lines stand in where the first is lost with its last lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from hpc_elastic.named_tuple import NamedTuple

LEAST_GAP_S, MOST_GAP_S = 5.0, 300.0  # between two lines about steps
GAP_SHARE = 0.2  # of the time since the first step, so that a short round has few lines


class Doing(str, Enum):
    """The subject of a line: the state of the workers of a round."""

    STARTED = "started"  # their processes have been started
    IMPORTED = "imported"  # one has attached to its agent, with its imports done
    STEP = "step"  # a step is done; the first line of a round tells of its first step
    GONE = "gone"  # none is left


class NodeUse(NamedTuple):
    """The use that the processes of a job step have made of a node; None: not known."""

    cpu_s: float | None = None  # CPU time since the workers of the round were started [s]
    cpus: int | None = None  # that Slurm has allocated to the step on the node
    peak: int | None = None  # of memory since the step began, cached files included [bytes]
    limit: int | None = None  # of memory [bytes]


class WorkFact(NamedTuple):
    """One line, written by one agent."""

    round: int
    doing: Doing
    at: float  # wall time of the writer [s since the epoch]
    mono: float  # its monotonic time [s]: spans between lines of one agent hold over steps of its clock
    agent: str  # id of the agent
    known: int  # number of the newest journal record that it had read
    step: int | None = None  # the newest one that is done
    saving_s: float = 0.0  # for how long the loop has stood still for saves in this round
    total: int | None = None  # steps of the whole run
    use: NodeUse | None = None  # of the writer's node so far; None: not known
    began: int | None = None  # with the first step of a round: the step they went on from; None: not told


def next_line_at(first_at: float, told_at: float) -> float:
    """Return when a step is worth the next line, by the clock of the arguments [s].

    Args:
        first_at: when the first step of the round was done [s].
        told_at: when the step of the newest line was [s].
    """
    long_enough = (told_at - GAP_SHARE * first_at) / (1 - GAP_SHARE)  # the gap is that share of the time then
    return min(max(told_at + LEAST_GAP_S, long_enough), told_at + MOST_GAP_S)


def encode_fact(fact: WorkFact) -> bytes:
    """Return a fact as one line: short, because there are many."""
    at, mono, saving_s = (round(each, 3) for each in (fact.at, fact.mono, fact.saving_s))
    line = {"r": fact.round, "d": fact.doing, "t": at, "m": mono, "a": fact.agent, "k": fact.known}
    more = {"s": fact.step, "v": saving_s or None, "n": fact.total, "u": fact.use, "b": fact.began}
    line |= {key: value for key, value in more.items() if value is not None}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def parse_facts(data: bytes) -> list[WorkFact]:
    """Return the facts in a file; lines that are torn or damaged are left out."""
    found = (_fact_of(line) for line in data.splitlines())
    return [fact for fact in found if fact is not None]


def _fact_of(line: bytes) -> WorkFact | None:
    """Return the fact in a line; None if it is damaged. There may be many lines, so each costs little."""
    try:
        fields = json.loads(line)
        doing = _DOINGS[fields["d"]]
        at, mono, saving_s = float(fields["t"]), float(fields["m"]), float(fields.get("v", 0.0))
        numbers = fields["r"], fields["k"], fields.get("s", 0), fields.get("n", 0), fields.get("b", 0)
        agent = fields["a"]
        use = _use_of(fields["u"]) if "u" in fields else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    is_sound = type(agent) is str and all(type(each) is int and 0 <= each < _MOST for each in numbers)
    if not is_sound or not -_MOST < at < _MOST or not 0 <= mono < _MOST or not 0 <= saving_s < _MOST:
        return None
    step, total, began = (fields.get(key) for key in "snb")
    return WorkFact(numbers[0], doing, at, mono, agent, numbers[1], step, saving_s, total, use, began)


def _use_of(values: object) -> NodeUse | None:
    """Return the use in a line; None if there is none, or it is damaged."""
    if not isinstance(values, list) or len(values) != len(NodeUse._fields):
        return None
    cpu_s, *counts = values
    is_sound = cpu_s is None or (type(cpu_s) in (int, float) and 0 <= cpu_s < _MOST)
    is_sound = is_sound and all(each is None or (type(each) is int and 0 <= each < _MOST) for each in counts)
    return NodeUse(*values) if is_sound else None


_DOINGS = {doing.value: doing for doing in Doing}
_MOST = 2**62  # of any number, as 64 bits hold it


def of_one_writer(facts: Iterable[WorkFact]) -> dict[int, list[WorkFact]]:
    """Return the lines of each round that tell most of it, all by one agent, in the order of its clock.

    Those of an agent that saw the end of the workers come first, then those that go on for longest.
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


def begun_steps(facts: Iterable[WorkFact]) -> dict[int, int]:
    """Return the steps that rounds went on from, by their numbers, where their workers have told."""
    return {fact.round: fact.began for fact in facts if fact.began is not None}


def is_untold(number: int, begun: Mapping[int, int]) -> bool:
    """Tell whether the workers of a round may go on from a state in memory, and have not told so far.

    Args:
        number: of the round.
        begun: the steps that rounds went on from, by their numbers; empty: no workers tell it.
    """
    return bool(begun) and number not in begun


class RunUse(NamedTuple):
    """The use of the nodes whose agents write lines, over all rounds; None: not known.

    Args:
        nodes: the nodes, sorted.
        cpu_s: CPU time of the rounds [s].
        of_cpu_s: the CPUs that Slurm had allocated, times the length of the rounds [s].
        peak: the most memory on a node, cached files included [bytes].
        peak_node: that node.
        limit: of memory there [bytes].
    """

    nodes: tuple[str, ...]
    cpu_s: float | None = None
    of_cpu_s: float | None = None
    peak: int | None = None
    peak_node: str = ""
    limit: int | None = None

    @property
    def cpu_share(self) -> float | None:
        """The share of the allocated CPUs that was used."""
        return self.cpu_s / self.of_cpu_s if self.cpu_s is not None and self.of_cpu_s else None


def use_of(facts: Iterable[WorkFact]) -> RunUse | None:
    """Return the use of a run; None if no line tells of it."""
    first: dict[tuple[int, str], WorkFact] = {}
    last: dict[tuple[int, str], WorkFact] = {}
    for fact in sorted(facts, key=lambda one: one.mono):
        key = fact.round, fact.agent
        first.setdefault(key, fact)
        if fact.use is not None:
            last[key] = fact
    found = [(fact, fact.use, fact.mono - first[key].mono) for key, fact in last.items() if fact.use]
    if not found:
        return None
    cpus = [(use.cpu_s, use.cpus, seconds) for _, use, seconds in found if use.cpu_s is not None]
    allocated = [count * seconds for _, count, seconds in cpus if count]
    peaks = [(use.peak, _node_of(fact), use.limit) for fact, use, _ in found if use.peak is not None]
    peak, node, limit = max(peaks, key=lambda one: one[0]) if peaks else (None, "", None)
    return RunUse(
        tuple(sorted({_node_of(fact) for fact, _, _ in found})),
        sum(one[0] for one in cpus) if cpus else None,
        sum(allocated) if cpus and len(allocated) == len(cpus) else None,
        peak,
        node,
        limit,
    )


def _node_of(fact: WorkFact) -> str:
    return fact.agent.rpartition(".")[0] or fact.agent
