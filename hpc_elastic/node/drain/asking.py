"""Which node asks Slurm about a signal and when, and a warning that waits for the answer."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.notices import EarlyNotice, Notice
from hpc_elastic.record.journal import Then
from hpc_elastic.record.state import RunState

PATIENCE_S = 2.0  # for the node that is to ask Slurm first
_TURN_S = 0.5  # between the turns of the others
WEIGH_S = 5.0  # a warning is weighed so long; after that it is heeded, whatever is known
_SAME_S = 5.0  # what comes so soon after a warning was held is the same one, which a node hears later


def turn_to_ask_s(state: RunState, me: str) -> float:
    """Return how long after a signal a node asks Slurm about it, unless another one has told by then [s].

    Slurm signals all nodes of a job at once, and they must not all ask. The node that has asked for the
    drain goes first; where that was none of the round's, its first member does. The others follow in
    their order, for those before them may be gone or may not have been signalled.

    Args:
        state: what all nodes agree on.
        me: this agent's node_id.
    """
    members = state.round.members if state.round is not None else ()
    asker = state.drain.node if state.drain is not None else ""
    first = next((one.node_id for one in members if one.node == asker), None)
    order = sorted((one.node_id for one in members), key=lambda node_id: node_id != first)
    if me in order[:1] or (me not in order and me.rpartition(".")[0] == asker):
        return 0.0
    place = order.index(me) if me in order else max(1, len(order))
    return PATIENCE_S + _TURN_S * (place - 1)


class Warned(NamedTuple):
    """A warning that is being weighed."""

    name: str  # of the signal
    at: float  # when it came, monotonic [s]
    is_asked: bool = False  # whether this node has Slurm asked about it


class EarlyWarning:
    """Weighs the warning before the time limit: where the limit was lowered it may come long before that.

    One node asks how much time is left. A warning that has come too early is recorded, and the first node
    of the round asks for the drain by the clock. Everything else is heeded, at the latest after `WEIGH_S`.

    Args:
        parts: what the agent is put together from.
    """

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._is_alone = parts.on_signal is Then.REJOIN
        self._weighed: Warned | None = None
        self._held_since: float | None = None  # when it was heard that a warning is held [s]
        self._untold: tuple[int, EarlyNotice] | None = None  # round, and what is to be recorded of it

    def takes(self, name: str) -> bool:
        """Take a warning to be weighed; False: it is to be heeded at once.

        Args:
            name: of its signal.
        """
        now = self._parts.clock.monotonic()
        self._look()
        if self._held_since is not None:
            return now < self._held_since + _SAME_S
        if self._weighed is None:
            self._weighed = Warned(name, now)
        return True

    def due(self, *, is_answered: bool) -> Warned | None:
        """Return the warning if it is to be heeded now; ask about it when it is this node's turn.

        Args:
            is_answered: whether nothing is being asked, and every answer has been taken.
        """
        self._look()
        warned, state = self._weighed, self._run.state
        if warned is None:
            return None
        if self._held_since is not None:
            self._drop(warned.name)
            return None
        now, me = self._parts.clock.monotonic(), self._run.membership.node_id
        is_due = state.drain is not None or (warned.is_asked and is_answered) or now >= warned.at + WEIGH_S
        if is_due:
            return self.give_back()
        if not warned.is_asked and now >= warned.at + (0.0 if self._is_alone else turn_to_ask_s(state, me)):
            self._weighed = warned._replace(is_asked=True)
            self._parts.notices.ask_why(warned.at, is_warning=True)
        return None

    def give_back(self) -> Warned | None:
        """Return the warning that is being weighed, which is heeded now."""
        warned, self._weighed = self._weighed, None
        return warned

    def hold(self, notice: Notice, early: EarlyNotice) -> None:
        """Take over that the warning has come too early.

        Args:
            notice: Slurm's answer.
            early: what it says of the time.
        """
        warned, running = self.give_back(), self._run.state.running
        if warned is None or running is None:
            return
        self._parts.log.say(f"{warned.name} received {notice.detail}")
        self._held_since = self._parts.clock.monotonic()
        self._untold = running.number, early

    def tell(self) -> None:
        """Write down that a warning is held, so that the other nodes hold theirs."""
        told, self._untold = self._untold, None
        if told is not None:
            number, early = told
            self._run.report_warning_held(number, early.left_s, early.before_s)

    def _drop(self, name: str) -> None:
        self._weighed = None
        self._parts.log.say(f"{name} received: too early, as another node has found out; the workers go on")

    def _look(self) -> None:
        """Take note of what another node has found out for all; each task of an array has its own limit."""
        held = self._run.state.held_warning
        if held is not None and not self._is_alone and self._held_since is None:
            self._held_since = self._parts.clock.monotonic()
            self._parts.notices.hear_limit(held.left_s)

    def begin(self) -> None:
        """Take note that a round has formed: what was held before that is over."""
        self._held_since = self._untold = None
