"""The records of the run's journal, and their JSON form. Pure.

The journal is the run's one log of all that nodes must agree on: immutable records, numbered for its life.
Their fold is the state of the run (`hpc_elastic.record.state`). An unknown version or kind is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, cast

from hpc_elastic import __version__
from hpc_elastic.errors import DamagedError, RendezvousStateError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import Count, Like, Prose, Range, decode, parse_object

OWN_SCRIPT = "job script"  # role of the nodes of a start in which a job script of the user's own runs
NO_RANK = -1  # of such a script in the record of its failure, in place of a worker's
MEMBERS = "members"  # the directory with the names of members, and of news for them
NEWS = "news+"  # begins the name of news: that there is a record; its number follows
FORMAT = 2

Port = Annotated[int, Range(0, 65535)]
Sizes = Annotated[str, Like(r"([0-9]{1,9}:[0-9]{1,9})?", "MIN:MAX")]


class Cause(str, Enum):
    """Why a round ended or a drain was asked for."""

    CRASH = "crash"  # a worker failed
    HANG = "hang"  # workers made no progress
    NODE_LOSS = "node_loss"  # an agent vanished
    MEMBERSHIP = "membership"  # a node wants to join
    PREEMPTION = "preemption"  # SIGTERM: Slurm wants the nodes back, unless it says why itself
    NODE_DRAIN = "node_drain"  # an administrator drains a node of the job
    REQUEUE = "requeue"  # scontrol requeue, by the user or an administrator
    TIME_LIMIT = "time_limit"  # the warning signal before the limit
    STOP = "stop"  # the user asked: hpc-elastic stop
    INTERRUPT = "interrupt"  # Ctrl-C
    CANCEL = "cancel"  # the user took the job back: scancel
    LAUNCH_FAILURE = "launch_failure"  # srun or the agents could not start
    JOIN_TIMEOUT = "join_timeout"  # too few nodes came
    AGENT_ERROR = "agent_error"  # an agent could not go on
    UNKNOWN = "unknown"  # neither a record nor Slurm tells why


class AfterDrain(str, Enum):
    """The nodes' act after a drain."""

    LEAVE = "leave"
    REJOIN = "rejoin"


class Decision(str, Enum):
    """How a run ended, for good."""

    DONE = "done"
    FAILED = "failed"
    HELD = "held"  # a budget is spent: the job waits, held, for its user
    STOPPED = "stopped"
    CANCELLED = "cancelled"


class Answer(str, Enum):
    """Slurm's answer about a signal that an agent got."""

    CONFIRMS = "confirms"  # Slurm itself wants the nodes back, or ends the job
    DENIES = "denies"  # Slurm does nothing to the job, so a user has sent the signal
    SILENT = "silent"  # Slurm did not answer
    REQUEUES = "requeues"  # Slurm has put the job back into its queue, and does not say why
    NO_SCRIPT = "no_script"  # Slurm ends the job, as it has taken its batch host from it


class Budget(str, Enum):
    """A limit of the continuations of a run; the names are those of the job's options."""

    NODE_LOSSES = "max_node_losses"
    PREEMPTIONS = "max_preemptions"
    TIME_LIMITS = "max_time_limits"
    LAUNCH_FAILURES = "max_launch_failures"
    REQUEUES = "max_requeues"
    STARTS_WITHOUT_SAVE = "max_starts_without_save"


class RunEvent(str, Enum):
    """An event of a run that has a message."""

    FAILED = "failed"
    HELD = "held"
    DONE = "done"
    NO_PROGRESS = "no-progress"  # starts in a row save nothing newer


class Verdict(str, Enum):
    """The meaning of a worker's word about its round."""

    BAD_NODE = "bad_node"  # its node is to stay out of the run
    GIVE_UP = "give_up"  # no restart helps: the run is to end as failed


class WorkerWord(NamedTuple):
    """The word of a worker that has ended a round."""

    verdict: Verdict
    rank: int
    node: str
    reason: Prose  # as the worker gave it

    @property
    def text(self) -> str:
        """The word as a sentence for people."""
        says = "says that its node is bad" if self.verdict is Verdict.BAD_NODE else "has given the run up"
        return f"rank {self.rank} on {self.node} {says}: {self.reason}"


class BadNode(NamedTuple):
    """A node that is bad by the word of a worker."""

    node: str
    reason: str  # for people


def bad_node(word: WorkerWord | None) -> BadNode | None:
    """Return the node that is bad by a word; None if the word is another, or there is none."""
    if word is None or word.verdict is not Verdict.BAD_NODE:
        return None
    return BadNode(word.node, f"rank {word.rank} says: {word.reason}")


class Role(str, Enum):
    """The kind of process that has written a record."""

    AGENT = "agent"
    SCRIPT = "script"  # finish, for the batch script of a job or of one task of an array
    COMMAND = "command"  # a command of the user: stop, cancel, scale, drill


class StopKind(str, Enum):
    """How a batch script of an array task has ended a start in which its agent has not said why it leaves."""

    FAILED = "failed"  # a line of the script failed before srun
    HELD = "held"  # the task waits in the queue until its user releases it
    GIVEN_UP = "given_up"  # it is not started again; the run goes on without it


class Epoch(NamedTuple):
    """One start of the job: a higher one fences every agent of a lower one."""

    submission: int
    link: int  # how many jobs of the same submission came before this one
    restart: int  # SLURM_RESTART_COUNT of this job; in array mode the run's own count of starts
    relaunch: int  # srun started again in the same start of the script

    @property
    def script(self) -> tuple[int, int, int]:
        """The start of the batch script, which may start the agents several times; a later one is higher."""
        return self[:3]

    def text(self) -> str:
        """Return the form used in file names, for example ``0-0-1-0``."""
        return "-".join(map(str, self))


class Member(NamedTuple):
    """One node of a round; its place in the round is its group rank."""

    node_id: str  # unique per agent process
    node: str  # the node's name for people and for Slurm
    slots: Count  # workers on this node
    role: str = "default_role"


class MarkedCheckpoint(NamedTuple):
    """The durable checkpoint all ranks of a round resume from."""

    step: int
    path: str | None


class EpochStarted(NamedTuple):
    """The first agent of a job start announces it, with the nodes that are to come."""

    epoch: Epoch
    job_id: str
    expected: tuple[str, ...]  # node names in Slurm's order; empty if unknown
    batch_host: str = ""  # the node that runs the batch script, if there is one
    sizes: Sizes = ""  # how many nodes its agents were started for, MIN:MAX; empty if they may differ


class RoundFormed(NamedTuple):
    """The membership of a round: decided once, the same for everybody."""

    number: Count
    epoch: Epoch
    members: tuple[Member, ...]
    master_addr: str
    master_port: Port
    checkpoint: MarkedCheckpoint | None
    lost: tuple[str, ...] = ()  # nodes of the round before that have vanished

    @property
    def workers(self) -> int:
        """How many workers it has on all nodes."""
        return sum(member.slots for member in self.members)

    @property
    def is_script(self) -> bool:
        """Whether a job script of the user's own runs in it, and no agent of ours."""
        return self.master_port == 0 and all(member.role == OWN_SCRIPT for member in self.members)


class RoundEnded(NamedTuple):
    """The round is over; all members stop their workers."""

    number: int
    cause: Cause
    nodes: tuple[str, ...]  # where it happened
    failure: dict[str, Any] | None  # a FailureRecord as JSON, for a crash or a hang
    saved: int | None = None  # newest durable checkpoint step then, if workers mark them
    word: WorkerWord | None = None  # of a worker, if that has ended it


class Asked(NamedTuple):
    """The signal that has asked for an end, and Slurm's answer about it."""

    signal: Prose = ""  # its name; empty: something else has asked
    answer: Answer | None = None  # None: Slurm was not asked, or its answer has not come
    said: Prose = ""  # the answer in words, for people


NO_SIGNAL = Asked()


class DrainRequested(NamedTuple):
    """Workers are to save and stop at one agreed step."""

    cause: Cause
    node: str  # whose agent or batch script asks; empty: a command of the user
    then: AfterDrain
    detail: Prose  # for people: the origin, if it is no signal
    epoch: Epoch | None = None  # the start whose agent asks; None: whichever is current
    left_s: float | None = None  # how long workers have from now on [s]; None: by the agents' flags
    asked: Asked = NO_SIGNAL
    budget: Budget | None = None  # that is spent, so that the run is to be held or ended


class DrainExplained(NamedTuple):
    """Slurm's answer about the signal that has asked for the drain under way."""

    epoch: Epoch
    cause: Cause
    detail: Prose  # for people
    left_s: float | None = None  # how long workers have from now on [s]; None: by the agents' flags
    answer: Answer = Answer.CONFIRMS

    @property
    def is_end_of_script(self) -> bool:
        """Whether Slurm ends the job because its batch script was killed; time is short then."""
        return self.cause is Cause.LAUNCH_FAILURE or self.answer is Answer.NO_SCRIPT


class StopAgreed(NamedTuple):
    """All ranks of a round that still run stop after this step; some may have ended well before."""

    number: int
    step: int


class NodeLeft(NamedTuple):
    """One node has saved and leaves by itself; the others go on without it (array mode)."""

    epoch: Epoch
    node_id: str
    node: str
    cause: Cause
    detail: Prose = ""  # for people: the origin, if it is no signal, such as the size that is wanted
    asked: Asked = NO_SIGNAL


class TaskStopped(NamedTuple):
    """The batch script of an array task has ended a start of the task, not its agent."""

    epoch: Epoch
    how: StopKind
    task: str  # <id of the array>_<index>
    restart: Count  # SLURM_RESTART_COUNT of the task
    node: str  # empty if it is not known
    detail: Prose  # for people


class Drained(NamedTuple):
    """Every worker of this job start has stopped; the nodes leave."""

    epoch: Epoch
    cause: Cause
    step: int | None  # newest durable checkpoint, if workers mark them
    detail: Prose  # for people: the origin, if it was no signal; why too few nodes are there
    took_s: float | None = None  # from the request to the last worker's end, by the writer's clock
    asked: Asked = NO_SIGNAL
    missing: tuple[str, ...] = ()  # nodes that were waited for in vain, or vanished before they had stopped
    budget: Budget | None = None  # as in the request


class RunEnded(NamedTuple):
    """The run is over for good."""

    decision: Decision
    exit_code: int
    reason: Prose
    failure: dict[str, Any] | None
    epoch: Epoch | None = None  # the start whose agent decides; None: whichever is current
    budget: Budget | None = None  # of a held run: that is spent; None: it is held for another reason


class SetupFailure(NamedTuple):
    """A line of the job script that failed before srun."""

    line: Prose
    step: Prose = ""  # the part of the script, for people: setup, the working directory
    code: int | None = None  # its exit code; None: it is not known
    words: Prose = ""  # the message of bash or of the line itself
    lasting: bool = False  # it fails wherever and whenever it is run again

    def is_same(self, other: SetupFailure) -> bool:
        """Tell whether the same line has failed in the same way, with any explanation."""
        return (self.line, self.step, self.code) == (other.line, other.step, other.code)

    @property
    def plain(self) -> str:
        """The failure, as the job script prints it."""
        how = "" if self.code is None else f" (exit code {self.code})"
        return f"{self.step} failed{how}: {self.line}" if self.step else self.line

    @property
    def text(self) -> str:
        """The same for people, with its explanation."""
        return f"{self.plain} ({self.words})" if self.words else self.plain


class Requeued(NamedTuple):
    """The batch script handed the job back to Slurm, or the next start found that this one had ended."""

    epoch: Epoch
    cause: Cause
    detail: Prose = ""  # for people: why
    failure: SetupFailure | None = None  # of the job script, before srun
    signal: Prose = ""  # sent by a user, so that the agents left; empty: none is known
    nodes: tuple[str, ...] = ()  # that were lost, if the next start has found that; else see rounds


class NodeUnfit(NamedTuple):
    """A node is unfit: it stays out of this start of the job, and no node waits for it."""

    epoch: Epoch
    node: str
    reason: Prose  # for people: the property, its value, the need, the fix
    by_failures: bool = False  # workers have failed there again and again; no check has found anything


class HangSuspected(NamedTuple):
    """Workers have shown no progress for too long: all nodes write down where theirs are."""

    number: int  # of the round
    look: Count  # how often so in this round, from 1
    node: str  # the asking node, which later records its findings
    detail: Prose  # for people: which ranks, and for how long


class SizeWanted(NamedTuple):
    """The user wants rounds of another size, between the job's minimum and maximum."""

    submission: int  # holds for this submission of the run, over its requeues
    size: Count  # nodes
    detail: Prose  # for people: the asker
    spares: Count | None = None  # nodes beyond that stand by, the rest leave; None: all of them stand by
    before: Count | None = None  # nodes of the round that ran when it was asked for; None: there was none


class NodeTaken(NamedTuple):
    """A node was lost because a user had Slurm take it: that is no failure of the node."""

    epoch: Epoch  # in which it was lost
    node: str
    reason: Prose  # for people
    loss: Count  # number of the record that tells of the loss


class NeverAsked(NamedTuple):
    """The workers do not ask whether to stop, so they cannot save when they are to leave."""

    number: int  # of the round in which that was found
    asks_now: bool = False  # they do since then: an import or a first step has taken long
    runs_on_s: float | None = None  # they run on for so long when a user stops them; None: not at all


class RanksStopped(NamedTuple):
    """The workers of a node that were stopped (SIGSTOP), so that the others wait; empty: none."""

    number: int  # of the round
    node: str
    ranks: tuple[int, ...]


class NodeSlow(NamedTuple):
    """The steps of a rank take far longer than those of the other nodes; the run goes on with it."""

    number: int  # of the round
    node: str
    rank: int  # the slowest one of the node
    step_s: float  # for which a step takes so long [s]
    usual_s: float  # the median of the nodes [s]
    before_s: float | None = None  # the median of this node before, in this round [s]; None: not known


class WarningHeld(NamedTuple):
    """The warning before the time limit has come too early; workers are asked later, by the clock."""

    number: int  # of the round
    node: str  # that found it out
    left_s: float  # to the time limit, when it was asked for [s]
    before_s: float  # how long before the limit the workers are asked [s]


class FailedLeaving(NamedTuple):
    """A worker failed while all were to save and leave; its unsaved work is lost."""

    epoch: Epoch
    number: int  # of its round
    node: str
    failure: dict[str, Any]


class FailedAlike(NamedTuple):
    """Workers of one more node failed as those did that ended a round: neither node is to blame."""

    epoch: Epoch
    number: Count  # of the round
    node: str


class DrillBegan(NamedTuple):
    """A drill is about to be done to the run; written before, so that it counts against no node."""

    epoch: Epoch
    id: str  # of the drill, unique in the run
    node: str  # that looks faulty for it until its next round; empty: none does
    detail: Prose  # for people: the act, and its round


class DrillCalledOff(NamedTuple):
    """A drill has done nothing after all: a failure of its node counts against the node."""

    epoch: Epoch
    id: str  # of the drill
    detail: Prose  # for people


class Notified(NamedTuple):
    """A process sends the message about an event, so that no other one does; it changes nothing else."""

    epoch: Epoch
    event: RunEvent
    about: int  # number of the record that ended the run; of starts without progress the step saved last


class Note(NamedTuple):
    """Something that people are to know of a start of the job; it changes nothing."""

    epoch: Epoch
    text: Prose


Entry = (
    EpochStarted
    | RoundFormed
    | RoundEnded
    | DrainRequested
    | DrainExplained
    | StopAgreed
    | NodeLeft
    | TaskStopped
    | Drained
    | RunEnded
    | Requeued
    | NodeUnfit
    | SizeWanted
    | HangSuspected
    | NodeTaken
    | NeverAsked
    | RanksStopped
    | NodeSlow
    | WarningHeld
    | FailedLeaving
    | FailedAlike
    | DrillBegan
    | DrillCalledOff
    | Notified
    | Note
)


class Record(NamedTuple):
    """An entry with its number, its writer and the writer's wall time (for display only)."""

    number: int
    at: float  # [s since the epoch]
    by: str  # name of the writer, for people: a node, a task of an array, or its role
    entry: Entry
    role: Role = Role.AGENT  # of the writer


_KINDS: dict[str, type] = {
    "epoch": EpochStarted,
    "round": RoundFormed,
    "ended": RoundEnded,
    "drain": DrainRequested,
    "explained": DrainExplained,
    "stop_at": StopAgreed,
    "node_left": NodeLeft,
    "task_stopped": TaskStopped,
    "drained": Drained,
    "ending": RunEnded,
    "requeue": Requeued,
    "unfit": NodeUnfit,
    "size": SizeWanted,
    "hang": HangSuspected,
    "taken": NodeTaken,
    "never_asked": NeverAsked,
    "ranks_stopped": RanksStopped,
    "slow": NodeSlow,
    "warning_held": WarningHeld,
    "failed_leaving": FailedLeaving,
    "failed_alike": FailedAlike,
    "drill": DrillBegan,
    "drill_called_off": DrillCalledOff,
    "notified": Notified,
    "note": Note,
}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


class _RecordForm(NamedTuple):
    """The keys of the records of all versions."""

    format: int
    version: Prose = ""


class _Kind(NamedTuple):
    """The key of a record's kind."""

    kind: Prose


class _Head(NamedTuple):
    """The keys of every record beside its entry."""

    at: float
    by: Prose
    role: Role


def news_name(number: int) -> str:
    """Return the name by which a process that is no member announces its journal record."""
    return f"{NEWS}{number}"


def encode(entry: Entry, *, at: float, by: str, role: Role = Role.AGENT) -> bytes:
    """Return the JSON form of a record; its number is its file name."""
    kind = _KIND_OF[type(entry)]
    head = {"format": FORMAT, "version": __version__, "kind": kind, "at": round(at, 3), "by": by}
    return json.dumps({**head, "role": role, **entry._asdict()}).encode()


class RecordError(RendezvousStateError):
    """A record is damaged or was written by an unknown version.

    Args:
        number: of the record.
        message: for people.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def parse(number: int, data: bytes) -> Record:
    """Return the record in `data`.

    Raises:
        RecordError: it is damaged or was written by an unknown version.
    """
    return parse_all([(number, data)])[0]


def parse_all(found: Iterable[tuple[int, bytes]]) -> list[Record]:
    """Return records, each from its number and its content.

    Raises:
        RecordError: one is damaged or was written by an unknown version.
    """
    records = []
    for number, data in found:
        try:
            fields = parse_object(data)
            form = decode(_RecordForm, fields)
            if form.format < FORMAT:
                raise _outdated(number, form)
            if form.format != FORMAT:
                raise _unknown(number, f"has format {form.format}", form)
            word = decode(_Kind, fields).kind
            kind = _KINDS.get(word)
            if kind is None:
                raise _unknown(number, f"is of the unknown kind {word!r}", form)
            head = decode(_Head, fields)
            entry = cast("Entry", decode(kind, fields))
        except DamagedError as error:
            fix = "bring the file back from a backup or snapshot, or submit a new run"
            raise RecordError(number, f"journal record {number} is damaged: {error}\n  fix: {fix}") from error
        records.append(Record(number, head.at, head.by, entry, head.role))
    return records


def _outdated(number: int, form: _RecordForm) -> RecordError:
    return RecordError(
        number,
        f"journal record {number} has format {form.format}, which an earlier hpc_elastic "
        f"({form.version or 'of no version'}) wrote; this one, {__version__}, reads format {FORMAT} only\n"
        "  fix: use this run with the installation that it was started with, or submit a new run; "
        "its checkpoints and logs can be read as they are",
    )


def _unknown(number: int, what: str, form: _RecordForm) -> RecordError:
    writer = f"hpc_elastic {form.version}" if form.version else "another version of hpc_elastic"
    return RecordError(
        number,
        f"journal record {number} {what}; {writer} wrote it, "
        f"this is {__version__}, which reads format {FORMAT}\n"
        f"  fix: use one version for the whole run: install {writer} on all nodes and here",
    )
