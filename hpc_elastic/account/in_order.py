"""The events of a run in the order of its journal, each with the clock by which it is timed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpc_elastic.account.facts import Doing, WorkFact
from hpc_elastic.account.one_clock import FAR_S, SUBMITTER, Stamp
from hpc_elastic.ids import BATCH
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import start_of
from hpc_elastic.record.journal import Entry, Epoch, EpochStarted, Record, Role, RoundEnded, RoundFormed

_NEVER = 2**63  # the number of a record that there is not


class SubmitTime(NamedTuple):
    """The run was submitted."""

    number: int
    at: float  # [s since the epoch]


Event = SubmitTime | Record | WorkFact


def of_other_clocks(facts: Iterable[WorkFact], rounds: Mapping[int, Sequence[WorkFact]]) -> list[WorkFact]:
    """Return the lines by which a node whose clock is far from the one that is read has begun a round.

    They are of that moment, too, and tell which clock is right.

    Args:
        facts: the lines of all agents.
        rounds: the lines that are read about each round, all by one agent.
    """
    began = {number: lines[0] for number, lines in rounds.items()}
    return [
        fact
        for fact in facts
        if fact.doing is Doing.STARTED
        and fact.agent != began[fact.round].agent
        and abs(fact.at - began[fact.round].at) >= FAR_S
    ]


def in_order(
    records: Sequence[Record],
    submissions: Sequence[SubmitTime],
    rounds: Mapping[int, Sequence[WorkFact]],
    others: Iterable[WorkFact] = (),
) -> list[Event]:
    """Return all events in the order of the journal.

    A line of an agent follows the newest record that the agent knew. Workers do steps until they are ended:
    such a line stands before the record that ends their round. A submission comes before all records of it.

    Args:
        records: of the journal.
        submissions: of the run.
        rounds: the lines of agents about each round.
        others: lines of other agents, from `of_other_clocks`.
    """
    first: dict[int, int] = {}
    ends: dict[int, int] = {}
    for record in records:
        epoch = getattr(record.entry, "epoch", None)
        if isinstance(epoch, Epoch):
            first.setdefault(epoch.submission, record.number)
        if isinstance(record.entry, RoundEnded):
            ends.setdefault(record.entry.number, record.number)
    keyed: list[tuple[tuple[float, int, float], Event]] = [
        ((record.number, 0, 0.0), record) for record in records
    ]
    for number, lines in rounds.items():
        last = ends.get(number, _NEVER) - 1
        for place, fact in enumerate(lines):
            known = min(fact.known, last) if fact.doing is Doing.STEP else fact.known
            keyed.append(((known, 1, number + place / len(lines)), fact))
    keyed += [((one.known, 1, one.round - 0.5), one) for one in others]
    keyed += [((first.get(one.number, float("inf")) - 1, 2, one.number), one) for one in submissions]
    return [event for _, event in sorted(keyed, key=lambda pair: pair[0])]


def stamps_of(events: Sequence[Event]) -> list[Stamp]:
    """Return when the events happened. A batch script has the clock of its node, as the agent there."""
    nodes = _nodes_of_scripts(event for event in events if isinstance(event, Record))
    found = []
    for event in events:
        if isinstance(event, SubmitTime):
            found.append(Stamp(event.at, SUBMITTER))
        elif isinstance(event, WorkFact):
            found.append(Stamp(event.at, event.agent.rpartition(".")[0], event.agent, event.mono))
        else:
            found.append(Stamp(event.at, nodes.get(event.number, event.by)))
    return found


def _told(entry: Entry) -> dict[str, str]:
    """Return the nodes of batch scripts that an entry tells, by the names of the scripts."""
    if isinstance(entry, EpochStarted) and entry.batch_host:
        return {BATCH: entry.batch_host}
    if not isinstance(entry, RoundFormed):
        return {}
    starts = ((start_of(member.node_id), member.node) for member in entry.members)
    return {start.task: node for start, node in starts if start is not None}


def _nodes_of_scripts(records: Iterable[Record]) -> dict[int, str]:
    """Return the node of each batch script that has written a record, by the number of the record.

    Before its first agent has told the node that is not known; then it is that of the agent.
    """
    nodes: dict[str, str] = {}
    found: dict[int, str] = {}
    early: dict[str, list[int]] = {}
    for record in records:
        for script, node in _told(record.entry).items():
            nodes[script] = node
            found.update(dict.fromkeys(early.pop(script, ()), node))
        if record.role is Role.SCRIPT and record.by in nodes:
            found[record.number] = nodes[record.by]
        elif record.role is Role.SCRIPT:
            early.setdefault(record.by, []).append(record.number)
    return found
