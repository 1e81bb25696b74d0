"""The words, the budget and the writers of each cause of a stop: the one table of causes. Pure.

A reader adds the facts of the record itself: nodes, signals, Slurm's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Cause


class Blame(str, Enum):
    """Where a stop comes from, for people."""

    PROGRAM = "the program"
    NODE = "a node"
    START = "the job script, or a start that failed"
    SLURM = "Slurm, or the site"
    USER = "a user or an administrator"
    NOBODY = "no one, or unknown"


class CauseRow(NamedTuple):
    """One cause of a stop.

    Attributes:
        noun: for one stop, after its number.
        plural: for several.
        clause: why a round, or a start of the whole run, has ended.
        blame: where it comes from.
        recorded_by: its writers, for people.
        budget: the setting that limits it alone; empty: none does.
        requeues: a further start follows, and `max_requeues` counts it.
        of_node: why one node, or the task of an array, leaves alone; empty: none does for it.
    """

    noun: str
    plural: str
    clause: str
    blame: Blame
    recorded_by: str
    budget: str = ""
    requeues: bool = False
    of_node: str = ""

    @property
    def alone(self) -> str:
        """Why one node leaves for it while the others go on."""
        return self.of_node or self.clause

    def counted(self, times: int) -> str:
        """Return the noun for so many stops."""
        return self.noun if times == 1 else self.plural


_AGENT, _FINISH = "an agent", "`finish`"
_LATER = f"{_FINISH}; the next start, if none had the time"
# fmt: off
CAUSES: Mapping[Cause, CauseRow] = {
    Cause.CRASH: CauseRow("crash", "crashes", "a worker failed", Blame.PROGRAM, _AGENT, "max_restarts"),
    Cause.HANG: CauseRow("hang", "hangs", "the workers hung", Blame.PROGRAM, _AGENT, "max_hangs"),
    Cause.NODE_LOSS: CauseRow(
        "node loss", "node losses", "a node was lost", Blame.NODE,
        f"{_AGENT} of another node; {_FINISH} or the next start, if too few are left",
        "max_node_losses", requeues=True, of_node="the node is down or unfit"),
    Cause.PREEMPTION: CauseRow(
        "preemption", "preemptions", "preemption", Blame.SLURM, _LATER,
        "max_preemptions", requeues=True, of_node="preemption"),
    Cause.TIME_LIMIT: CauseRow(
        "time limit", "time limits", "the time limit", Blame.SLURM, _LATER,
        "max_time_limits", requeues=True, of_node="the time limit"),
    Cause.LAUNCH_FAILURE: CauseRow(  # one agent leaves for a killed script alone: it has started
        "launch failure", "launch failures", "the agents could not start", Blame.START,
        f"{_FINISH}; {_AGENT}, if the batch script was killed",
        "max_launch_failures", requeues=True, of_node="the batch script was killed"),
    Cause.NODE_DRAIN: CauseRow(
        "drain of a node", "drains of nodes", "the drain of a node", Blame.USER, _FINISH,
        requeues=True, of_node="the drain of the node"),
    Cause.REQUEUE: CauseRow(
        "by hand", "by hand", "the job was requeued with scontrol requeue", Blame.USER, _LATER,
        requeues=True, of_node="the task was requeued with scontrol requeue"),
    Cause.JOIN_TIMEOUT: CauseRow(
        "join timeout", "join timeouts", "too few nodes came", Blame.SLURM, _AGENT, requeues=True),
    Cause.AGENT_ERROR: CauseRow(
        "agent error", "agent errors", "the agents could not go on", Blame.NODE, f"{_FINISH}, or {_AGENT}",
        requeues=True),
    Cause.UNKNOWN: CauseRow(
        "for an unknown cause", "for an unknown cause", "the cause is not known", Blame.NOBODY,
        "the next start", requeues=True, of_node="the cause is not known"),
    Cause.MEMBERSHIP: CauseRow(
        "change of nodes", "changes of nodes", "a change of nodes", Blame.NOBODY, f"{_AGENT}; `scale`"),
    Cause.STOP: CauseRow("stop", "stops", "stopped by the user", Blame.USER, "`stop`, or an agent"),
    Cause.INTERRUPT: CauseRow("interrupt", "interrupts", "interrupted", Blame.USER, _AGENT),
    Cause.CANCEL: CauseRow(
        "cancel", "cancels", "the job was cancelled", Blame.USER, f"{_FINISH}, or `cancel`",
        of_node="the task was cancelled"),
}
# fmt: on

FAILURES = frozenset(
    cause for cause, row in CAUSES.items() if row.blame in (Blame.PROGRAM, Blame.NODE, Blame.START)
)
"""Causes of the run's own, which come before a request to leave."""
CALLED_AWAY = frozenset(cause for cause, row in CAUSES.items() if row.of_node)
"""Why a single task of an array leaves, without a wish of its user about the run."""
