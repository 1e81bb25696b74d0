"""Looks whether workers make progress, where there is anything to go by; else it costs next to nothing."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from hpc_elastic.node.decision import Group, Hang
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.node.workers.process_facts import killed_words
from hpc_elastic.processes.control_group import read_memory

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord
    from hpc_elastic.node.hangs.activity import ActivityWatch
    from hpc_elastic.node.hangs.hangs import Hangs
    from hpc_elastic.processes.control_group import Memory

_ACTIVITY_S = 30.0  # after which the activity of workers is watched that have not told a step


class HangGuard:
    """The guard over the workers of one node, from round to round.

    Args:
        parts: the agent's parts.
    """

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run = parts.rendezvous.run
        self._group: LocalGroup | None = None
        self._hangs: Hangs | None = None
        self._started = 0.0  # when the workers were started, monotonic [s]
        self._activity: ActivityWatch | None = None
        self._is_known = False  # whether the run has measured anything in an earlier round
        self._memory: Memory | None = None  # as it was then
        self.hang = Hang.NONE

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep, as far as a look at workers goes [s]."""
        return math.inf if self._hangs is None else self._hangs.nap_s

    @property
    def ran_s(self) -> float:
        """Since when the workers run [s]."""
        return self._parts.clock.monotonic() - self._started

    def begin(self, group: LocalGroup) -> None:
        """Take note that workers are about to be started."""
        self.end()
        self._group, self._started = group, self._parts.clock.monotonic()
        self._memory = read_memory()
        self._is_known = os.path.exists(self._parts.paths.timeouts)

    def look(self, status: Group, *, counts: bool) -> None:
        """Look whether the workers make progress; see `hang`.

        Args:
            status: of the workers.
            counts: whether their time counts: they were not asked to stop.
        """
        group, now = self._group, self._parts.clock.monotonic()
        if group is not None and status is Group.RUNNING:
            self._look_at_activity(group, now)
        if group is None or (self._hangs is None and not self._is_possible(group, counts=counts)):
            return
        if self._hangs is None:
            from hpc_elastic.node.hangs.hangs import Hangs  # noqa: PLC0415 - only if workers tick

            self._hangs = Hangs(self._run, self._parts, group, self._started, self._activity)
        self.hang = self._hangs.look(status, counts=counts and self._run.blind_since is None)

    def _look_at_activity(self, group: LocalGroup, now: float) -> None:
        """Look at workers that have told no step so far, after a while or where their silence has a limit."""
        if self._activity is None:
            is_early = now < self._started + _ACTIVITY_S and self._parts.hangs.silence == math.inf
            if is_early or any(view.ticks for view in group.views):
                return
            from hpc_elastic.node.hangs.activity import ActivityWatch  # noqa: PLC0415 - if no worker ticks

            self._activity = ActivityWatch(self._parts, group, self._started)
        if any(view.ticks for view in group.views) and self._parts.hangs.silence == math.inf:
            self._activity.close()  # its steps tell more
            self._activity = None
            return
        self._activity.look(now)

    def _is_possible(self, group: LocalGroup, *, counts: bool) -> bool:
        """Tell whether there is anything to go by, here or on another node."""
        options = self._parts.hangs
        if self._run.state.hang is not None or options.silence != math.inf:
            return True
        if options.is_off or not counts:
            return False
        given = options.first_step is not None
        return given or self._is_known or any(view.ticks for view in group.views)

    def ask(self, _group: LocalGroup) -> None:
        """Have all nodes write down where their ranks are."""
        if self._hangs is not None:
            self._hangs.ask()

    def report(self, _group: LocalGroup) -> None:
        """End the round: workers make no progress, and it is known which."""
        if self._hangs is not None:
            self._hangs.report()

    def explained(self, failure: FailureRecord) -> FailureRecord:
        """Return a failure with this agent's knowledge of its reason."""
        message = failure.message or self._parts.services.reason(failure.pid)
        words = killed_words(self._memory, read_memory(), failure.exitcode)
        return failure._replace(message="\n".join(filter(None, (message, words))))

    def end(self) -> None:
        """Take leave of workers that are gone."""
        if self._hangs is not None:
            self._hangs.close()
        if self._activity is not None:
            self._activity.close()
        self._group = self._hangs = self._activity = None
        self.hang = Hang.NONE
