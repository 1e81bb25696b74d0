"""The course of one run: faults strike it one after the other, are mended, and it goes on."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos_lib.faults import FAULTS, NEEDS_A_DISK, STALLS, NoTargetError, Scene
from chaos_lib.promises import has_lost_its_host
from chaos_lib.recovery import Strike
from chaos_lib.training import USER, SubmitError
from hpc_elastic.clock import clock_text
from hpc_elastic.record.state import RunState

LOOK_S = 0.1
RECOVERY_LIMIT_S = 240.0
GONE_LOOK_S = 15.0  # between looks whether a job without progress is still there
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
DRAINED_BY_SLURM = ("Kill task failed", "Duplicate jobid")
TO_THE_LAST = ("batch-kill", "srun-kill")  # within seconds they leave no process that could do anything
TO_THE_LAST_S = 10.0
TOGETHER = 0.2  # how often two faults strike at once
HASTY = 0.25  # how often a fault does not wait until the run has recovered from the last


class Mend(NamedTuple):
    """Something broken that is to be mended."""

    due: float  # [s since the epoch]
    fault: str
    do: Callable[[], object]
    began: float  # when it broke [s since the epoch]


def killed_by_slurm(job_id: str, batch_log: str, controller_log: str) -> bool:
    """Tell whether Slurm has left no process of a job that could do anything.

    srun aborts its step, and kills the agents, when a node is back that does not know the step any more.
    Slurm kills the batch script of a node that is alive but has answered too late: the machine is busy.

    Args:
        job_id: of the job.
        batch_log: of the job.
        controller_log: of slurmctld.
    """
    is_aborted = "srun: Job step aborted" in batch_log
    kill = rf"Killing JobId={job_id}\b.* StepId=(\S*\.)?batch due to failed node"
    return is_aborted and re.search(kill, controller_log) is not None


class Course:
    """Strikes one run until it has had its faults, and waits for its end.

    Args:
        scene: the run and where it goes on.
        kinds: faults that may be drawn.
        most: how many times something strikes.
        stop_at: no fault strikes later [s since the epoch].
        say: prints a line.
    """

    def __init__(
        self, scene: Scene, kinds: Sequence[str], most: int, stop_at: float, say: Callable[[str], None]
    ) -> None:
        self._scene = scene
        self._kinds = kinds
        self._left = most
        self._stop_at = stop_at
        self._say = say
        self._mends: list[Mend] = []
        self._well_since: float | None = None
        self._began = self._last_change = time.time()
        self._last_progress: tuple[int, int] = (0, 0)
        self.strikes: list[Strike] = []
        self.stalls: list[tuple[float, float]] = []
        self._gone_look = self._began + GONE_LOOK_S
        self.resumed = 0  # so many nodes Slurm had drained by itself
        self.by_hand = 0  # so often the user had to do what `status` told

    def run(self) -> list[str]:
        """See the run to its end; returns what was broken."""
        try:
            return self._follow()
        finally:
            self._mend(everything=True)

    def _follow(self) -> list[str]:
        wait = self._next_wait()
        while True:
            self._mend(everything=False)
            state = self._scene.training.state()
            if state.ending is not None:
                return []
            now = time.time()
            if self._note_progress(state, now):
                wait = min(wait, 10.0)
            if now - self._last_change > GONE_LOOK_S and now > self._gone_look:
                self._gone_look = now + GONE_LOOK_S
                self._resume_nodes()
                self._release()
                self._requeue()
                if broken := self._take_up():
                    return broken
            if now - self._last_change > RECOVERY_LIMIT_S:
                return [f"no progress for {RECOVERY_LIMIT_S:g} s: {self._scene.cluster.story()}"]
            if self._left > 0 and now < self._stop_at and self._is_time(wait, now):
                self._strike()
                wait = self._next_wait()
            time.sleep(LOOK_S)

    def _take_up(self) -> list[str]:
        """Go on with a job of which no process was left, as its user would; returns what was broken."""
        training = self._scene.training
        job = {} if "array" in training.shape.flags else training.job()
        if job.get("JobState") not in OVER or training.state().ending is not None:
            return []
        if not self._killed_to_the_last() and not self._killed_by_slurm(job):
            return [f"the job is over, the run is not: {job}"]
        try:
            training.go_on()
        except SubmitError as error:
            return [f"the run cannot go on: {error}"]
        self._say("  no process was left and the job is over: hpc-elastic submit --resume")
        self.by_hand += 1
        self._last_change = time.time()
        return []

    def _resume_nodes(self) -> None:
        """Take nodes back into service, as an administrator would, that Slurm itself has drained.

        It does so where a step does not end: its slurmstepd does not while slurmctld is away. And where a
        node still has what it is to start anew.
        """
        cluster = self._scene.cluster
        for line in set(cluster.as_root("sinfo", "--noheader", "--Node", "--format=%n %E").splitlines()):
            node, _, reason = line.strip().partition(" ")
            if reason.startswith(DRAINED_BY_SLURM):
                cluster.as_root("scontrol", "update", f"nodename={node}", "state=resume")
                self._say(f"  Slurm has drained {node} ({reason}): resumed")
                self.resumed += 1

    def _release(self) -> None:
        """Release a job that Slurm holds because it could not start it, as `status` tells its user to.

        A node that comes back within seconds of being given up has not yet ended what ran on it.
        """
        training = self._scene.training
        is_array = "array" in training.shape.flags
        if is_array or training.job().get("Reason") != "launch_failed_requeued_held":
            return
        done = self._scene.cluster.run(USER, ["scontrol", "release", training.job_id])
        self._say(
            f"  Slurm holds the job as its launch failed: scontrol release {done.stderr.strip()}".rstrip()
        )
        self.by_hand += 1

    def _requeue(self) -> None:
        """Requeue a job without any process, as `status` tells its user to.

        The node of the batch script and all other agents were lost in the same seconds. Slurm has removed
        that node, and keeps the job on the others until its time limit.
        """
        training = self._scene.training
        job = {} if "array" in training.shape.flags else training.job()
        if job.get("JobState") != "RUNNING" or not has_lost_its_host(job) or training.processes():
            return
        done = self._scene.cluster.run(USER, ["scontrol", "requeue", training.job_id])
        self._say(f"  no process was left of the job: scontrol requeue {done.stderr.strip()}".rstrip())
        self.by_hand += 1

    def _killed_to_the_last(self) -> bool:
        """Tell whether srun, and thereby the agents, and the batch script were killed together."""
        at = {kind: [strike.at for strike in self.strikes if strike.fault == kind] for kind in TO_THE_LAST}
        batches, sruns = (at[kind] for kind in TO_THE_LAST)
        return any(abs(batch - srun) < TO_THE_LAST_S for batch in batches for srun in sruns)

    def _killed_by_slurm(self, job: Mapping[str, str]) -> bool:
        """Tell whether Slurm itself has killed srun's step and the batch script, see `killed_by_slurm`."""
        cluster = self._scene.cluster
        logs = job.get("StdOut", ""), str(cluster.directory / "log" / "slurmctld.log")
        batch_log, controller_log = (Path(log).read_text(errors="replace") for log in logs)
        return killed_by_slurm(job["JobId"], batch_log, controller_log)

    def _note_progress(self, state: RunState, now: float) -> bool:
        """Note whether anything is new; tells whether the run is well: it has saved in its newest round."""
        marks = self._scene.training.marks()
        progress = (state.last, len(marks))
        if progress != self._last_progress:
            self._last_progress, self._last_change = progress, now
        running = state.running
        is_well = running is not None and any(mark.name.round == running.number for mark in marks)
        if is_well and not self._mends:
            self._well_since = self._well_since or now
        else:
            self._well_since = None
        return is_well

    def _next_wait(self) -> float:
        """Return how long to wait: positive once the run is well, negative from the last fault on [s]."""
        draw = self._scene.random
        return -draw.uniform(0.1, 8.0) if draw.random() < HASTY else draw.uniform(0.2, 4.0)

    def _is_time(self, wait: float, now: float) -> bool:
        if wait < 0:
            last = self.strikes[-1].at if self.strikes else self._began
            return now - last >= -wait
        return self._well_since is not None and now - self._well_since >= wait

    def _strike(self) -> None:
        self._well_since = None
        before = len(self.strikes)
        self._strike_once()
        if len(self.strikes) == before:
            time.sleep(1.0)
            return
        self._left -= 1
        if self._scene.random.random() < TOGETHER:
            time.sleep(self._scene.random.uniform(0.0, 1.0))
            self._strike_once()

    def _strike_once(self) -> None:
        draw = self._scene.random
        weights = [FAULTS[kind].weight for kind in self._kinds]
        kind = draw.choices(self._kinds, weights)[0]
        going_on = {mend.fault for mend in self._mends}
        clash = kind in going_on or (kind in NEEDS_A_DISK and going_on & set(STALLS))
        if clash:
            return
        began = time.time()
        try:
            struck = FAULTS[kind].strike(self._scene)
        except NoTargetError as error:
            self._say(f"  {clock_text(began)} {kind}: nothing to hit: {error}")
            return
        except AssertionError as error:  # a command of the cluster refused
            self._say(f"  {clock_text(began)} {kind}: could not strike: {str(error).splitlines()[0]}")
            return
        self.strikes.append(Strike(kind, began, struck.what))
        self._last_change = began
        self._say(f"  {clock_text(began)} {kind}: {struck.what}")
        if struck.mend is not None:
            self._mends.append(Mend(time.time() + struck.after_s, kind, struck.mend, began))

    def _mend(self, *, everything: bool) -> None:
        now = time.time()
        stalled = any(mend.fault in STALLS for mend in self._mends)
        due = [
            mend
            for mend in self._mends
            if everything or (mend.due <= now and not (stalled and mend.fault in NEEDS_A_DISK))
        ]
        due.sort(key=lambda mend: mend.fault not in STALLS)
        for mend in due:
            self._mends.remove(mend)
            try:
                mend.do()
            except AssertionError as error:
                self._say(f"  {mend.fault} could not be mended: {str(error).splitlines()[0]}")
            if mend.fault in STALLS:
                self.stalls.append((mend.began, time.time()))
            self._last_change = time.time()


def draw_seed() -> int:
    """Return a seed that nobody has chosen."""
    return random.SystemRandom().randrange(1_000_000)
