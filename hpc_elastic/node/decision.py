"""The next act of an agent, given its facts; the limits of restarts are among them. Pure."""

from __future__ import annotations

from enum import Enum, auto

from hpc_elastic.meet.rules import PeerView
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested, Epoch, Verdict, WorkerWord
from hpc_elastic.record.same_failure import lone_node, repeated_text
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.settings.setting import usual
from hpc_elastic.settings.table import JobSettings


class RestartBudgets(NamedTuple):
    """How often each cause may end a round, counted in the run over all its requeues."""

    crash: int = usual(JobSettings.max_restarts)  # torchrun's --max-restarts
    hang: int = usual(JobSettings.max_hangs)
    node_loss: int | None = None  # None: no limit
    same_failure: int | None = None  # the same failure so often in a row with nothing saved; None: no limit

    @classmethod
    def of_settings(cls, settings: AgentSettings) -> RestartBudgets:
        """Return the budgets that an agent was given."""
        return cls(settings.max_restarts, settings.max_hangs, same_failure=settings.same_failure or None)

    def of(self, cause: Cause) -> int | None:
        """Return the budget of a cause; None: no limit."""
        limits = {Cause.CRASH: self.crash, Cause.HANG: self.hang, Cause.NODE_LOSS: self.node_loss}
        return limits.get(cause)


class Group(Enum):
    """The workers of this node."""

    RUNNING = auto()
    STOPPING = auto()  # told to end; not all are gone
    STOPPED = auto()  # gone because they were asked to
    SUCCEEDED = auto()
    FAILED = auto()  # one has failed; others may still run

    @property
    def is_gone(self) -> bool:
        """Whether no worker is left."""
        return self in (Group.STOPPED, Group.SUCCEEDED)


class Hang(Enum):
    """The knowledge of workers that make no progress."""

    NONE = auto()
    SUSPECTED = auto()  # one of this node's has been silent for too long
    PROVEN = auto()  # all nodes have looked, and this one is to name the odd one


class OwnFacts(NamedTuple):
    """The facts of an agent about its own node."""

    round: int  # the round this agent's workers are in
    group: Group
    waited_for_others: bool = False  # the exit barrier's time is up
    wedged: bool = False  # a worker of this node hangs in the kernel
    hang: Hang = Hang.NONE
    leaves_alone: bool = False  # this node was asked to leave, and the others go on without it
    word: WorkerWord | None = None  # of a worker of this node, about its node or the whole run


class AgentFacts(NamedTuple):
    """Everything the decision rests on."""

    state: RunState
    epoch: Epoch  # this agent's
    own: OwnFacts
    others: PeerView = PeerView()
    budgets: RestartBudgets = RestartBudgets()
    min_nodes: int | None = None  # of a round; None: not known


class Action(Enum):
    """The next act."""

    WAIT = auto()
    STOP_WORKERS = auto()  # end them: their round is over
    REPORT_CRASH = auto()
    REPORT_LOSS = auto()
    REPORT_WORD = auto()  # end the round: a worker of this node has said that it is of no use to go on
    ASK_FOR_STACKS = auto()  # workers may hang: all nodes are to write down where theirs are
    REPORT_HANG = auto()
    GIVE_UP = auto()  # the restart budget is spent: end the run as failed
    DRAIN = auto()  # go on with the agreed stop
    REPORT_DONE = auto()
    REPORT_DRAINED = auto()
    REPORT_PAUSED = auto()
    REPORT_WEDGE = auto()  # end the round: this node leaves the run to the others
    REJOIN = auto()
    LEAVE = auto()
    LEAVE_ALONE = auto()  # tell the others, which go on without this node
    STAND_DOWN = auto()  # a newer start of the run exists
    ABANDON = auto()  # leave as failed: this node has workers that no signal ends


def decide(facts: AgentFacts) -> Action:
    """Choose the next step of an agent that is or was in a round."""
    state, group = facts.state, facts.own.group
    if group is Group.STOPPING:
        return Action.WAIT
    if state.epoch > facts.epoch:
        return Action.STAND_DOWN if group.is_gone else Action.STOP_WORKERS
    if facts.own.wedged:
        return _with_a_wedge(facts)
    if state.ending is not None or state.drained is not None:
        return Action.LEAVE if group.is_gone else Action.STOP_WORKERS
    if state.running is None or state.running.number != facts.own.round:
        return _after_the_round(facts)
    return _in_the_round(facts)


def _with_a_wedge(facts: AgentFacts) -> Action:
    """Have the others go on without this node, whose next workers would want the same device."""
    state = facts.state
    is_in_round = state.running is not None and state.running.number == facts.own.round
    if is_in_round and state.ending is None:
        return Action.REPORT_WEDGE
    return Action.ABANDON if facts.own.group.is_gone else Action.STOP_WORKERS


def _after_the_round(facts: AgentFacts) -> Action:
    if not facts.own.group.is_gone:
        return Action.STOP_WORKERS
    if has_given_up(facts.state, facts.own.word):
        return Action.GIVE_UP if facts.others.moved_on else _when_all_stopped(facts, Action.GIVE_UP)
    if facts.state.leaving:  # a failure on the way out is no reason to end the run
        return _when_all_stopped(facts, Action.REPORT_DRAINED)
    if left_out(facts.state, facts.budgets, facts.min_nodes) is not None:
        return Action.REJOIN  # and that node leaves in place of joining
    if spent(facts.state, facts.budgets) is not None:
        return _give_up(facts)
    return Action.REJOIN


def _give_up(facts: AgentFacts) -> Action:
    """End the run, unless the crash may be only a consequence of a node's loss.

    Members that have found so wait for the next round already, and are not waited for.
    """
    if facts.others.vanished or facts.others.moved_on:
        return Action.REJOIN
    return Action.GIVE_UP if facts.others.everyone_stopped or facts.own.waited_for_others else Action.WAIT


def _in_the_round(facts: AgentFacts) -> Action:
    drain = facts.state.drain
    if facts.own.word is not None:
        return Action.REPORT_WORD
    if facts.own.group is Group.FAILED:
        return Action.REPORT_CRASH if facts.state.leave_cause is None else Action.STOP_WORKERS
    if facts.others.everyone_succeeded and facts.own.group is Group.SUCCEEDED:
        return Action.REPORT_DONE
    leaving = drain is not None and drain.then is AfterDrain.LEAVE
    if facts.others.lost and not leaving:
        return Action.REPORT_LOSS
    if drain is None:
        return _in_peace(facts)
    return _in_a_drain(facts, drain)


def _in_a_drain(facts: AgentFacts, drain: DrainRequested) -> Action:
    if not facts.own.group.is_gone:
        return Action.DRAIN
    if facts.own.leaves_alone and drain.then is AfterDrain.REJOIN and not facts.others.everyone_stopped:
        return Action.LEAVE_ALONE
    report = Action.REPORT_DRAINED if drain.then is AfterDrain.LEAVE else Action.REPORT_PAUSED
    return _when_all_stopped(facts, report)


def _in_peace(facts: AgentFacts) -> Action:
    """Choose the next step without a failure, a loss or a request to stop."""
    if facts.own.group is Group.RUNNING and facts.own.hang is not Hang.NONE:
        return Action.REPORT_HANG if facts.own.hang is Hang.PROVEN else Action.ASK_FOR_STACKS
    timed_out = facts.own.group is Group.SUCCEEDED and facts.own.waited_for_others
    return Action.LEAVE if timed_out else Action.WAIT


def _when_all_stopped(facts: AgentFacts, action: Action) -> Action:
    return action if facts.others.everyone_stopped or facts.own.waited_for_others else Action.WAIT


def decide_blind(facts: AgentFacts, *, signalled: bool, waited: bool) -> Action:
    """Choose the next step while the shared directory refuses: WAIT, STOP_WORKERS or LEAVE.

    Healthy workers go on. A failure waits to be recorded, so that a passing outage costs time only.

    Args:
        facts: the facts of the last look.
        signalled: this agent was asked to leave.
        waited: the exit barrier's time is over since the outage began.
    """
    if facts.own.group.is_gone:
        return Action.LEAVE if signalled or waited else Action.WAIT
    if facts.own.group is Group.FAILED and waited:
        return Action.LEAVE
    if facts.own.group is Group.FAILED and signalled:
        return Action.STOP_WORKERS
    return Action.STOP_WORKERS if decide(facts) is Action.STOP_WORKERS else Action.WAIT


def spent(state: RunState, budgets: RestartBudgets) -> str | None:
    """Tell that the newest round ended by something that no budget covers.

    Returns:
        The reason in words; None: go on.
    """
    if state.ended is None:
        return None
    if state.ended.word is not None and has_given_up(state):
        return state.ended.word.text
    return _all_used(state, state.ended.cause, budgets) or _the_same_again(state, budgets)


def left_out(state: RunState, budgets: RestartBudgets, min_nodes: int | None) -> str | None:
    """Return the node that leaves before the run counts as failed: the same failure has always hit it alone.

    Args:
        state: the run.
        budgets: how often each cause may end a round.
        min_nodes: of a round; None: not known.

    Returns:
        The node, if enough others are left; None: there is none.
    """
    ends, ended = state.repeated, state.ended
    if min_nodes is None or ended is None or ended.word is not None or not ends or ended is not ends[-1]:
        return None
    node = lone_node(ends)
    if node is None or spent(state, budgets) is None:
        return None
    members = {member.node for member in state.round.members} if state.round is not None else set()
    others = members.union(state.expected) - state.lost - {node}
    return node if len(others) >= min_nodes else None


def has_given_up(state: RunState, word: WorkerWord | None = None) -> bool:
    """Tell whether a worker has said that no restart helps.

    Args:
        state: the run.
        word: of a worker of this node; its round may have ended for another reason at the same time.
    """
    told = state.ended.word if state.ended is not None else None
    return any(one is not None and one.verdict is Verdict.GIVE_UP for one in (told, word))


def _all_used(state: RunState, cause: Cause, budgets: RestartBudgets) -> str | None:
    limit = budgets.of(cause)
    if limit is None or state.used(cause) <= limit:
        return None
    if cause is Cause.NODE_LOSS:
        return f"nodes were lost {state.used(cause)} times, and max_node_losses = {limit}"
    rounds = {0: "", 1: " and the 1 restart is used"}.get(limit, f" and all {limit} restarts are used")
    by = " (max_hangs)" if cause is Cause.HANG else ""
    return f"{CAUSES[cause].clause}{rounds}{by}"


def _the_same_again(state: RunState, budgets: RestartBudgets) -> str | None:
    ended, ends = state.ended, state.repeated
    is_newest = bool(ends) and ended is ends[-1]
    if not is_newest or not budgets.same_failure or len(ends) < budgets.same_failure:
        return None
    nodes = len({member.node for member in state.round.members}) if state.round else None
    return f"{CAUSES[ended.cause].clause if ended else ''}: {repeated_text(ends, nodes)} (same_failure)"
