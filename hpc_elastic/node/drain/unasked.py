"""Workers that never ask whether to stop: told once, before a preemption ends them unsaved."""

from __future__ import annotations

from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import Group
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.workers.local_group import LocalGroup

LOOK_AFTER_S = 60.0  # since the workers were started; imports and a first step take time
_ENDS = "end them at once, unsaved"
_RUN_ON = "let them run on until the time is up"
_LINES = """\
the workers do not ask whether to stop: a preemption and the time limit {ends}. In the training loop:
    from hpc_elastic import worker
    worker.tick(step)                             # once per step
    if worker.should_stop():
        save(path); worker.checkpoint_saved(step, path); sys.exit()
  or, for a program that saves by itself: --unasked run-on, --unasked signal:USR1 (docs/how-to/stopping.md)"""


class UnaskedWatch:
    """Tells people and the journal of it, once per agent and submission; only the round's first node does.

    Args:
        parts: what the agent is put together from.
    """

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._group: LocalGroup | None = None
        self._since = 0.0
        self._is_told = False

    def look(self, group: LocalGroup, status: Group) -> None:
        """Look whether it is time to say something; costs nothing once it was."""
        if self._is_told or status is not Group.RUNNING:
            return
        now = self._parts.clock.monotonic()
        if group is not self._group:
            self._group, self._since = group, now
        state = self._run.state
        is_asked = state.stop_step is not None and state.stop_step < 0
        if not is_asked and (now < self._since + LOOK_AFTER_S or state.drain is not None):
            return
        self._is_told = True
        is_first = group.formed.members[0].node_id == self._run.membership.node_id
        if is_first and not any(channel.asks_should_stop for channel in group.channels):
            ends = _RUN_ON if self._parts.times.drain.unasked.runs_on else _ENDS
            self._parts.log.say(_LINES.format(ends=ends))
            self._run.report_never_asked(group.formed.number)
