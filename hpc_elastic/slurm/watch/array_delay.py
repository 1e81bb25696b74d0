"""Tasks of an array that were requeued start at once: Slurm would have them wait for about two minutes.

Their own scripts are gone by then, so that the first node of the round that goes on does it, in a
thread of its own, some times after each new round. Nothing waits for it and nothing depends on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.client.job_standing import Standing, due_to, job_facts, standing
from hpc_elastic.slurm.client.parse import between_s
from hpc_elastic.slurm.run_jobs import job_start
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from hpc_elastic.slurm.watch.job_watch import ASK_TIMEOUT_S, JobWatch, Loop, WatchOptions, place_of

PAUSES_S = (2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # between looks after a round has formed
LONGEST_DELAY_S = 900.0  # of Slurm's own; a later start is the wish of a user
MOST = 64  # tasks in one look
LOG_PATIENCE_S = 1.0  # Slurm may write why it ends a task a moment after it has put it back
_LOG_PAUSE_S = 0.05
_WAITS = "BeginTime"
_SOON = "StartTime=now+3"  # in the same second slurmd takes the new start's credential for a revoked one


def is_delayed(fields: Mapping[str, str]) -> bool:
    """Tell whether a task waits only because it was requeued a moment ago. Pure.

    Args:
        fields: of ``scontrol show job``.
    """
    was_requeued = fields.get("Restarts", "0") not in ("0", "")
    if not was_requeued or fields.get("JobState") != "PENDING" or fields.get("Reason") != _WAITS:
        return False
    delay_s = between_s(fields.get("SubmitTime", ""), fields.get("EligibleTime", ""))
    return delay_s is not None and delay_s <= LONGEST_DELAY_S


def start_returned(paths: RunPaths, array: str, slurm: Slurm) -> list[str]:
    """Let the requeued tasks of a run start now; return their names.

    Args:
        paths: the files of the run.
        array: the id of this task's array.
        slurm: Slurm's commands.

    Raises:
        HpcElasticError: Slurm does not answer, or the records cannot be read.
    """
    known = read_submissions(paths)
    tasks = slurm.array_tasks(known[-1].token if known else "", array)
    waiting = [task.name for task in tasks if task.is_waiting and task.reason == _WAITS]
    started = [name for name in waiting[:MOST] if is_delayed(slurm.show_job(name) or {})]
    for name in started:
        slurm.update(name, _SOON)
    return started


class Looks:
    """Looks some times in a thread, the last time minutes after it was asked to.

    Args:
        look: does it; must not raise.
        pauses_s: how long to wait before each look [s].
    """

    def __init__(self, look: Callable[[], object], pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        self._look = look
        self._pauses_s = pauses_s
        self._left: deque[float] = deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._is_closed = False

    def begin(self) -> None:
        """Look from now on, anew if it is under way."""
        with self._changed:
            self._left = deque(self._pauses_s)
            if not self._is_running and not self._is_closed:
                self._is_running = True
                threading.Thread(target=self._run, name="array-return", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while self._wait():
            self._look()

    def _wait(self) -> bool:
        with self._changed:
            if self._left:
                self._changed.wait_for(lambda: self._is_closed, self._left.popleft())
                if not self._is_closed:
                    return True
            self._is_running = False
            return False


class TaskWatch(JobWatch):
    """Listens to Slurm for the agent of one task, which has a limit and a preemption of its own.

    Args:
        paths: the run.
        slurm_env: Slurm's facts for the agent's process.
        options: of the watch.
        slurm: Slurm's commands.
        loop: the agent's.
        pauses_s: how long to wait before each look for tasks that come back [s].
    """

    def __init__(
        self,
        paths: RunPaths,
        slurm_env: SlurmEnv,
        options: WatchOptions,
        slurm: Slurm,
        loop: Loop,
        *,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        super().__init__(place_of(paths, slurm_env), options, slurm, SystemClock(), loop)
        self._paths = paths
        self._array = slurm_env.run_job
        self._commands = slurm
        self._looks = Looks(self._let_start, pauses_s)
        self._task = slurm_env.job_ref
        self._log_began = job_start.log_size(paths, self._task)  # before that earlier starts have ended

    def begin(self, *, is_first: bool) -> None:
        """Take note that a round with this node has formed; its first node looks for all of them."""
        super().begin(is_first=True)
        if is_first:
            self._looks.begin()

    def close(self) -> None:
        """End; a question that is under way is left to itself."""
        super().close()
        self._looks.close()

    def _told_by_log(self, fields: Mapping[str, str]) -> Cause | None:
        """Return why Slurm has ended this start of the task, which has no other reader once it is over.

        Args:
            fields: of ``scontrol show job``; of a task that is back in the queue they tell no reason.
        """
        is_back = standing(job_facts(fields), self._place.restarts) is Standing.REQUEUED
        give_up_at = self._clock.monotonic() + LOG_PATIENCE_S
        while True:
            told = due_to(job_start.log_end(self._paths, self._task, since=self._log_began))
            if told is not None or not is_back or self._clock.monotonic() >= give_up_at:
                return told
            self._clock.sleep(_LOG_PAUSE_S)

    def _let_start(self) -> None:
        try:
            start_returned(self._paths, self._array, self._commands)
        except (HpcElasticError, OSError):
            pass  # they start two minutes later


def watch_task(paths: RunPaths, slurm: SlurmEnv, options: WatchOptions, loop: Loop) -> TaskWatch:
    """Return the source of Slurm's news for the agent of one task of an array."""
    return TaskWatch(paths, slurm, options, Slurm(query_timeout_s=ASK_TIMEOUT_S), loop)
