"""The pictures and tables of docs/states.md, made by driving the code's own rules.

``python -m tests.docs.states_page`` writes them again after a rule has changed. The states of a run, a start
and a round come from `hpc_elastic.record.state.apply`, to which every kind of record is given in every state
that it can reach; what an agent does comes from `hpc_elastic.node.decision.decide`, and what becomes of a job
or a task from `hpc_elastic.slurm.end.lifecycle.decide`. Who writes a record is who makes one in the package.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpc_elastic.meet.member_names import TERMINAL, Phase
from hpc_elastic.meet.rules import PeerView
from hpc_elastic.node.agent import PHASE_OF
from hpc_elastic.node.decision import Action, AgentFacts, Group, OwnFacts
from hpc_elastic.node.decision import decide as next_act
from hpc_elastic.record.causes import CAUSES, CauseRow
from hpc_elastic.record.journal import (
    AfterDrain,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.record.state import NO_EPOCH, RunState, apply
from hpc_elastic.slurm.client.job_standing import JobFacts, Standing, job_facts, standing
from hpc_elastic.slurm.end.choices import Choice, Facts, Others, RequeueBudgets
from hpc_elastic.slurm.end.lifecycle import decide as fate
from tests.docs.pages import DOCS, REPOSITORY

PAGE = DOCS / "states.md"
PACKAGE = REPOSITORY / "hpc_elastic"
_BEGIN, _END = "<!-- {}: begin -->\n", "<!-- {}: end -->\n"
_MOST_STATES = 20_000  # that are looked at; the rules reach far fewer
_WRITERS = {  # by the first rooms of a module that makes a record
    "meet": "agent",
    "node": "agent",
    "start": "agent",
    "slurm/end": "`finish`",
    "slurm/operate": "command",
    "slurm/local": "local runner",
    "slurm/drill": "command",
    "submitit": "submitit's task",
    "api": "`call`",
}
_READERS = ("record", "report", "cli", "account")  # rooms that make records only to read or to try them
_MEMBERS = (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1))


class Change(NamedTuple):
    """One row: a state, the record that changes it, the next state."""

    before: str
    event: str
    after: str


def run_state(state: RunState) -> str:
    """Return the state of the run."""
    if state.ending is not None:
        return state.ending.decision.value
    if state.epoch == NO_EPOCH:
        return "submitted"
    return "waits in the queue" if state.requeued else "open"


def start_state(state: RunState) -> str:
    """Return the state of the newest start of the run's job."""
    if state.epoch == NO_EPOCH:
        return "none"
    if state.ending is not None or state.requeued:
        return "over"
    if state.drained is not None:
        return "drained"
    if state.leaving:
        return "draining"
    if state.running is None:
        return "nodes meet"
    return "pausing" if state.drain is not None else "a round runs"


def round_state(state: RunState) -> str:
    """Return the state of the newest round."""
    if state.round is None:
        return "none"
    if state.ended is not None:
        return "over"
    if state.drain is None:
        return "runs"
    return "to stop" if state.stop_step is None else "to stop at a step"


class Story(NamedTuple):
    """A state that was reached, and how many starts and rounds it took."""

    state: RunState
    starts: int = 0


def _entries(story: Story) -> Iterator[tuple[str, Entry]]:
    """Yield every kind of record that can change one of the three, as it would be written in a state."""
    state = story.state
    epoch, number = state.epoch, state.rounds
    script = Epoch(0, 0, story.starts, 0)
    is_over = state.ending is not None and epoch == NO_EPOCH
    which = "submitted again" if is_over else "next start"
    yield f"`EpochStarted` ({which})", EpochStarted(script, "7", ("n1", "n2"))
    yield "`EpochStarted` (submitted again)", EpochStarted(Epoch(1, 0, 0, 0), "8", ("n1", "n2"))
    yield "`RoundFormed`", RoundFormed(number + 1, epoch, _MEMBERS, "n1", 1, None)
    for cause in (Cause.CRASH, Cause.HANG, Cause.NODE_LOSS, Cause.MEMBERSHIP):
        yield f"`RoundEnded` ({cause.value})", RoundEnded(number, cause, ("n1",), None)
    for then in AfterDrain:
        cause = Cause.PREEMPTION if then is AfterDrain.LEAVE else Cause.MEMBERSHIP
        yield f"`DrainRequested` ({then.value})", DrainRequested(cause, "n1", then, "")
    yield "`StopAgreed`", StopAgreed(number, 5)
    for member in _MEMBERS:
        yield "`NodeLeft`", NodeLeft(epoch, member.node_id, member.node, Cause.PREEMPTION)
    yield "`Drained`", Drained(epoch, Cause.PREEMPTION, None, "")
    yield "`Requeued`", Requeued(epoch, Cause.PREEMPTION)
    for decision in Decision:
        yield f"`RunEnded` ({decision.value})", RunEnded(decision, 0, "", None)


def _essence(state: RunState) -> tuple[object, ...]:
    """Return what the rules look at, so that no state is looked at twice."""
    drain, ending = state.drain, state.ending
    flags = (state.round is None, state.ended is None, state.stop_step is None, state.drained is None)
    return (
        *(state.epoch, min(state.rounds, 1), *flags, state.requeued, state.left),
        None if drain is None else drain.then,
        None if ending is None else ending.decision,
    )


def changes(label: Callable[[RunState], str]) -> list[Change]:
    """Return all changes of one of the three that records can make, in the order in which they are found."""
    found: dict[Change, None] = {}
    seen: set[tuple[object, ...]] = set()
    waiting = [Story(RunState())]
    while waiting:
        story = waiting.pop(0)
        for event, entry in _entries(story):
            after = apply(story.state, entry)
            if label(after) != label(story.state):
                found[Change(label(story.state), event, label(after))] = None
            starts = story.starts + (isinstance(entry, EpochStarted) and after != story.state)
            essence = _essence(after)
            if essence not in seen and starts <= 2 and len(seen) < _MOST_STATES:
                seen.add(essence)
                waiting.append(Story(after, starts))
    assert len(seen) < _MOST_STATES
    return list(found)


def writers() -> Mapping[str, str]:
    """Return by kind of record who makes one in the package."""
    kinds = {entry.__name__ for entry in (type(one) for _, one in _entries(Story(RunState())))}
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith(tuple(f"{room}/" for room in _READERS)):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                found.setdefault(node.func.id, set()).add(_writer(place))
    return {kind: ", ".join(sorted(who)) for kind, who in found.items()}


def _writer(place: str) -> str:
    return next(who for room, who in _WRITERS.items() if place.startswith(f"{room}/"))


def _merged(rows: Sequence[Change]) -> list[tuple[str, list[str], str]]:
    """Return the rows with the records that lead from one state to another in one."""
    merged: dict[tuple[str, str], list[str]] = {}
    for before, event, after in rows:
        merged.setdefault((before, after), []).append(event)
    return [(before, events, after) for (before, after), events in merged.items()]


def _shortest(rows: Sequence[Change]) -> list[tuple[str, list[str], str]]:
    """Return the same, with the states from which the same records lead to the same state in one."""
    merged: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for before, events, after in _merged(rows):
        merged.setdefault((tuple(events), after), []).append(before)
    return [(", ".join(before), list(events), after) for (events, after), before in merged.items()]


def _listed(events: Sequence[str]) -> str:
    """Return records in words, those of one kind together."""
    kinds: dict[str, list[str]] = {}
    for event in events:
        kind, _, rest = event.partition(" (")
        kinds.setdefault(kind, []).extend([rest.removesuffix(")")] if rest else [])
    return ", ".join(f"{kind} ({', '.join(more)})" if more else kind for kind, more in kinds.items())


def table(rows: Sequence[Change]) -> str:
    """Return (from, event, to, who writes it) as a table."""
    who = writers()
    lines = ["| from | record | to | written by |", "|---|---|---|---|"]
    for before, events, after in _shortest(rows):
        kinds = dict.fromkeys(event.split("`")[1] for event in events)
        by = dict.fromkeys(name for kind in kinds for name in who[kind].split(", "))
        lines.append(f"| {before} | {_listed(events)} | {after} | {', '.join(by)} |")
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[Change]) -> str:
    """Return the changes as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2"]
    names = dict.fromkeys(name for before, _, after in rows for name in (before, after))
    lines += [f"    {_id(name)}: {name}" for name in names]
    for before, events, after in _merged(rows):
        kinds = dict.fromkeys(event.split("`")[1] for event in events)
        lines.append(f"    {_id(before)} --> {_id(after)}: {', '.join(kinds)}")
    return "\n".join([*lines, "```"]) + "\n"


def _id(name: str) -> str:
    return name.replace(" ", "_")


_EPOCH = Epoch(0, 0, 0, 0)


def _after(*entries: Entry) -> RunState:
    state = RunState()
    for entry in entries:
        state = apply(state, entry)
    return state


def _situations() -> Mapping[str, RunState]:
    """Return what an agent can meet in the journal, in words."""
    began: tuple[Entry, ...] = (
        EpochStarted(_EPOCH, "7", ("n1", "n2")),
        RoundFormed(1, _EPOCH, _MEMBERS, "n1", 1, None),
    )
    leave = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "")
    rejoin = DrainRequested(Cause.MEMBERSHIP, "n1", AfterDrain.REJOIN, "")
    return {
        "its round runs": _after(*began),
        "a pause is asked for": _after(*began, rejoin),
        "a drain is asked for": _after(*began, leave),
        "its round is over": _after(*began, RoundEnded(1, Cause.NODE_LOSS, ("n2",), None)),
        "the start is drained": _after(*began, leave, Drained(_EPOCH, Cause.PREEMPTION, None, "")),
        "the run has ended": _after(*began, RunEnded(Decision.DONE, 0, "", None)),
        "a newer start exists": _after(*began, EpochStarted(Epoch(0, 0, 1, 0), "7", ("n1", "n2"))),
    }


def acts() -> str:
    """Return the act of an agent by its workers and the journal; then that once all other nodes' are gone."""
    lines = ["| the journal | " + " | ".join(f"workers {_words(one)}" for one in Group) + " |"]
    lines.append("|---|" + "---|" * len(Group))
    for words, state in _situations().items():
        cells = []
        for group in Group:
            facts = AgentFacts(state, _EPOCH, OwnFacts(1, group))
            everyone = PeerView(everyone_stopped=True, everyone_succeeded=group is Group.SUCCEEDED)
            together = facts._replace(others=everyone)
            found = dict.fromkeys(_words(next_act(one)) for one in (facts, together))
            cells.append(", then ".join(found))
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _words(one: Group | Action) -> str:
    return one.name.lower().replace("_", " ")


def phases() -> str:
    """Return the phases of an agent, as its name in ``members/`` has them."""
    by_group = {phase: f"its workers have {_words(group)}" for group, phase in PHASE_OF.items()}
    when = {
        Phase.JOINING: "it has no workers, and wants the next round",
        Phase.RUNNING: "it is a member of the round",
        Phase.LEFT: "it has left on purpose",
        Phase.ABSENT: "it has ended before it told its name: the job script's epilog tells it",
        **by_group,
    }
    lines = ["| phase | the agent's name says so when | heartbeat |", "|---|---|---|"]
    beats = {True: "no more", False: "yes"}
    lines += [f"| `{phase.value}` | {when[phase]} | {beats[phase in TERMINAL]} |" for phase in Phase]
    return "\n".join(lines) + "\n"


def _job(**fields: str) -> JobFacts | None:
    usual = {"JobState": "RUNNING", "Reason": "None", "Restarts": "0", "Requeue": "1", "NumNodes": "2"}
    return job_facts({**usual, "PreemptTime": "None", "EndTime": "2026-01-01T08:00:00", **fields})


_JOBS: Mapping[str, JobFacts | None] = {
    "Slurm does not answer": None,
    "`RUNNING`": _job(),
    "`RUNNING`, in the grace of a preemption": _job(PreemptTime="2026-01-01T07:59:00"),
    "`PENDING`, or its restart count is higher": _job(JobState="PENDING", Restarts="1"),
    "`TIMEOUT`, or Reason `TimeLimit`": _job(JobState="TIMEOUT", Reason="TimeLimit"),
    "`NODE_FAIL`, or Reason `NodeDown`": _job(JobState="NODE_FAIL", Reason="NodeDown"),
    "`PREEMPTED`": _job(JobState="PREEMPTED", PreemptTime="2026-01-01T08:00:00"),
    "`LAUNCH_FAILED`, `OUT_OF_MEMORY`, or Reason `RaisedSignal:`": _job(JobState="LAUNCH_FAILED"),
    "`CANCELLED`": _job(JobState="CANCELLED"),
    "any other end": _job(JobState="FAILED", Reason="NonZeroExitCode"),
}


def fates(*, is_task: bool) -> str:
    """Return what `finish` does with a job, or with a task of an array, by Slurm's word and the records."""
    began = (EpochStarted(_EPOCH, "7", ("n1", "n2")), RoundFormed(1, _EPOCH, _MEMBERS, "n1", 1, None))
    leave = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "")
    states = {
        "no record of an end": _after(*began),
        "drained": _after(*began, leave, Drained(_EPOCH, Cause.PREEMPTION, 5, "")),
    }
    lines = ["| the job in Slurm | it stands so | no record of an end | drained |", "|---|---|---|---|"]
    for words, job in _JOBS.items():
        cells = [_fate(state, job, is_task=is_task) for state in states.values()]
        lines.append(f"| {words} | {standing(job, 0).value} | " + " | ".join(cells) + " |")
    assert {standing(job, 0) for job in _JOBS.values()} == set(Standing)
    return "\n".join(lines) + "\n"


def _fate(state: RunState, job: JobFacts | None, *, is_task: bool) -> str:
    others = Others(running=1, waiting=0) if is_task else None
    facts = Facts(state, _EPOCH, job, "7_1" if is_task else "7", 1, is_task=is_task, others=others)
    return _choice(fate(facts, RequeueBudgets()))


def _choice(choice: Choice) -> str:
    record = getattr(choice, "record", None)
    name = type(choice).__name__.lower()
    return f"{name}: {record.decision.value}" if record is not None else name


def causes() -> str:
    """Return the table of causes, as the product reads it."""
    lines = ["| one is called | in words | of one node alone | to blame | recorded by | budgets |"]
    lines.append("|---|---|---|---|---|---|")
    for row in CAUSES.values():
        cells = row.noun, row.clause, row.of_node, row.blame.value, row.recorded_by, budgets_text(row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def budgets_text(row: CauseRow) -> str:
    """Return the settings that limit a cause, as a cell of a table."""
    names = filter(None, (row.budget, Budget.REQUEUES.value if row.requeues else ""))
    return ", ".join(f"`{name}`" for name in names)


def sections() -> Mapping[str, str]:
    """Return by name each part of the page that is made."""
    three = {"run": run_state, "start": start_state, "round": round_state}
    made = {
        name: f"{picture(rows)}\n{table(rows)}" for name, rows in ((n, changes(f)) for n, f in three.items())
    }
    return {
        **made,
        "agent": phases(),
        "worker": acts(),
        "job": fates(is_task=False),
        "task": fates(is_task=True),
        "causes": causes(),
    }


def made(page: str) -> str:
    """Return a page with all its made parts made anew.

    Raises:
        ValueError: the marks of a part are not on the page.
    """
    for name, text in sections().items():
        begin, end = _BEGIN.format(name), _END.format(name)
        head, mark, rest = page.partition(begin)
        _, other, tail = rest.partition(end)
        if not mark or not other:
            raise ValueError(f"the page has no part {name}")
        page = f"{head}{begin}\n{text}\n{end}{tail}"
    return page


def write(path: Path = PAGE) -> None:
    """Make the page anew."""
    path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
