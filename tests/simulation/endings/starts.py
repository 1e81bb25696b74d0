"""One start of a job: its batch script, with the real `finish`, and its agents.

The script goes through the lines of `sbatch_templates/elastic.sbatch` and `batch.sh`, which are in bash. The
agents write the records of the real ones, and leave to the real code who may begin, and what Slurm has meant.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.errors import HpcElasticError, RunDirError, StoreError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.rules import MeetingSettings, refuse_stranger, sizes_text
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    AfterDrain,
    Asked,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SetupFailure,
    StopAgreed,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState, has_ended
from hpc_elastic.record.why_left import Notice
from hpc_elastic.slurm.client.commands import look
from hpc_elastic.slurm.client.job_standing import Standing, standing
from hpc_elastic.slurm.end.bad_nodes import begin_with_nodes, run_with_nodes
from hpc_elastic.slurm.end.batch_host import wait_until_removed
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.end.unwritten import mark_text
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.slurm.watch.job_watch import JobPlace, JobWatch, WatchOptions
from tests.simulation.endings.controller import Job, SimulatedSlurm
from tests.simulation.endings.place import RUN_ID
from tests.simulation.endings.threads import ProcessClock
from tests.simulation.lock import SimulatedLock
from tests.simulation.mount import Mount, Weather
from tests.simulation.world import Node

if TYPE_CHECKING:
    from tests.simulation.endings.scenario import Endings

CALM = Weather()
_POLL_S = 0.5
_LOOK_S = 0.2
HAND_BACK_S = 2.5  # in which agents can give a job back [s]
_LEASE_S = 3.0  # until the loss of a node is recorded [s]
_KILLED, _TERMINATED = 137, 143  # exit codes of srun
_RELAUNCHES = 4
_WORK_S = (20.0, 40.0)  # after which the run is done


class JobStart:
    """The processes of one start of a job.

    Args:
        run: the schedule.
        job: the job.
        submission: number of its submission.

    Attributes:
        noun: of which it is a start.
        causes: what has ended it, or may have; the simulation knows that.
        began_from: step that its workers began from; None: none have run.
        is_disturbed: somebody was killed or refused who would have had the job go on.
        ends_in: called when `finish` begins in it.
    """

    noun = "job"
    relaunch = 0  # of the agents
    has_gone = False  # its agent has left without a word, as the directory did not answer
    has_looked = False  # at the ends of earlier starts

    def __init__(self, run: Endings, job: Job, submission: int) -> None:
        self.run = run
        self.job = job
        self.restart = job.restarts
        self.submission = submission
        self.index = 0  # of the starts of its job, or of its chain
        self.born_at = run.world.now
        self.causes: set[Cause] = set()
        self.began_from: int | None = None
        self.is_disturbed = False
        self.held = False  # the run was held as it ended
        self.held_for: Budget | None = None
        self.is_seen_held = False
        self.is_recorded = False  # as begun
        self.is_unfit = False  # it was left for its nodes, and none was lost
        self.nodes: tuple[str, ...] = ()
        self.was_signalled = False  # some time
        self.bad_line = False
        self.lost_node = ""  # one that its agents are to notice
        self.crashes = False  # a worker fails for good
        self.succeeds = False
        self.on_finish: Callable[[JobStart], None] = lambda _start: None
        self._heard = False
        self._ignores = False  # signals, in the script
        self._listens = False  # the agents have their handlers
        self.signals = 0  # that have come to the agents of this srun
        self._agents_code = 0
        self.works = False  # a round has begun
        self._script_died_at: float | None = None
        self.threads: list[Node] = []  # of the agents
        self._mounts: list[Mount] = []
        self.stalled = (0.0, 0.0)  # the shared directory is out of reach: since when, and until when [s]
        self.script = run.world.new_node(f"{job.ref}.{self.restart}")
        self.agents: Node | None = None

    @property
    def name(self) -> str:
        """Job and restart count."""
        return f"job {self.job.ref}, start {self.restart}"

    @property
    def agents_name(self) -> str:
        """Name of the program that is its agents."""
        return f"{self.job.nodes[0]} ({self.name})"

    def task(self, relaunch: int) -> TaskStart | None:  # noqa: ARG002 - a job is none
        """Return the start of a task of an array that it is; None: it is that of a job."""
        return None

    @property
    def key(self) -> tuple[int, int, int]:
        """Its place among the starts of the run."""
        return self.submission, self.job.link, self.restart

    @property
    def is_current(self) -> bool:
        """Whether Slurm has not put the job back since."""
        return self.job.processes is self and self.job.restarts == self.restart

    def stall(self, seconds: float) -> None:
        """Have the shared directory answer none of its processes for a while [s]."""
        self.is_disturbed = True
        self.stalled = (self.run.world.now, self.run.world.now + seconds)
        for mount in self._mounts:
            mount.stall(seconds, is_soft=False)

    # hooks of the controller

    def begin(self) -> None:
        """Start the batch script."""
        self.nodes = self.job.nodes
        self.script.start(self._script)

    def signal(self) -> None:
        """Send SIGTERM to the script and the agents."""
        self.was_signalled = True
        if not self._ignores:
            self._heard = True
        if self.agents is not None and not self.agents.is_over:
            self.signals += 1
            if not self._listens:
                self._kill_agents(_TERMINATED)

    def kill(self) -> None:
        """Kill script and agents."""
        self.is_disturbed |= not (self.script.is_over and self._had_time())
        self.script.kill()
        self._kill_agents(_KILLED)

    def kill_agents(self) -> bool:
        """Kill the agents alone; return whether there are any."""
        if self.agents is None or self.agents.is_over:
            return False
        self._kill_agents(_KILLED)
        return True

    def _kill_agents(self, code: int) -> None:
        if self.agents is not None and not self.agents.is_over:
            self._agents_code = code
            self.agents.kill()
        self._end_threads()

    def _end_threads(self) -> None:
        """End the threads of the agents; a program of the world cannot end another one itself."""
        for thread in self.threads:
            self.run.world.at(self.run.world.now, thread.kill)
        self.threads = []

    def _had_time(self) -> bool:
        """Tell whether agents that listen have had time to give the job back since the script was killed."""
        world, agents = self.run.world, self.agents
        if self._script_died_at is None or agents is None or agents.is_over:
            return agents is not None and agents.is_over and not agents.is_killed
        is_late = world.now >= self._script_died_at + HAND_BACK_S
        return is_late and world.now > self.run.controller.away_until + HAND_BACK_S

    def kill_script(self) -> None:
        """Kill the script alone, and what it runs; without agents that listen nobody is left."""
        self.is_disturbed |= self.agents is None or self.agents.is_over or not self.works
        self._script_died_at = self.run.world.now
        self.script.kill()

    # the batch script

    def _script(self) -> None:
        self.run.controller.script_exits(self.job, self, self._run_script())

    def _run_script(self) -> int:
        world = self.run.world
        if self.index:
            ended = self._begin_again()
            if ended is not None:
                return ended.code
        self.script.wait(world.random.uniform(0.0, 1.0))
        if self.bad_line:
            return self._finish(0, 0, SetupFailure("module load x", "setup", 1)).code
        return self._run_sruns()

    def _run_sruns(self) -> int:
        nodes = len(self.job.nodes)
        for relaunch in range(_RELAUNCHES):
            code = 1 if self._heard else self._srun(relaunch)
            ended = self._finish(code, relaunch)
            if ended.code != ExitCode.RELAUNCH:
                return ended.code
            assert ended.nodes <= nodes
            self._heard = False
        return int(ExitCode.RELAUNCH)  # finish asks for no more than that

    def _begin_again(self) -> Ended | None:
        self.run.place.write(
            self.job.ref, f"[12:00:00] hpc_elastic finish: {mark_text(self.restart, self.noun, self.job.ref)}"
        )
        self.on_finish(self)
        try:
            finish = self._finish_of(self.script, Epoch(*self.key, 0), 0)
            ended = begin_with_nodes(finish, self._say)
            self.has_looked = True
        except HpcElasticError as error:
            self.run.world.tell(f"{self.name}: earlier starts are not looked at: {error}")
            ended = None
        return ended

    def _finish(self, code: int, relaunch: int, failure: SetupFailure | None = None) -> Ended:
        self._ignores = True
        self.on_finish(self)
        epoch = Epoch(*self.key, relaunch)
        self.run.world.tell(f"{self.name}: srun {relaunch} ends with {code}")
        ended = self._run(self._finish_of(self.script, epoch, code, failure))
        self._ignores = False
        return ended

    def _run(self, finish: Finish) -> Ended:
        start, slurm, clock = finish.start, finish.slurm, finish.clock
        return run_with_nodes(finish.run, finish.log, start, slurm, clock, self._say)

    def finish_in_its_place(self, node: Node, epoch: Epoch) -> None:
        """Do for the batch script, which is gone, what it would have done."""
        finish = self._finish_of(node, epoch, 0)
        finish.budgets = finish.budgets._replace(max_relaunch=0)
        self._run(finish)

    def why_it_ends(self, node: Node) -> Standing:
        """Ask Slurm until it answers."""
        while True:
            with suppress(HpcElasticError):
                return standing(look(self.slurm(), self.job.ref), self.restart)
            node.wait(1.0)

    def _finish_of(self, node: Node, epoch: Epoch, code: int, failure: SetupFailure | None = None) -> Finish:
        """Return the real thing, with the simulated store and Slurm.

        Args:
            node: where it runs.
            epoch: of the start.
            code: exit code of srun.
            failure: of a line of the script.
        """
        run = self.run
        start = Start(
            run.place.paths,
            epoch,
            self.job.ref,
            len(self.job.nodes),
            local=False,
            srun_exit_code=code,
            is_submitted=True,
            launch_failure=failure,
            task=self.task(epoch.relaunch),
            chain=run.chances.chain,
            run_id=RUN_ID,
            node_list=",".join(self.job.nodes),
        )
        finish = Finish(start, run.budgets, self.slurm(), node, self._say)
        finish.log = self.log(node, Role.SCRIPT, is_member=False)
        return finish

    def _say(self, text: str) -> None:
        self.run.world.tell(f"{self.name}: ", text)

    def slurm(self) -> SimulatedSlurm:
        """Return the commands of Slurm for one of its processes."""
        return SimulatedSlurm(
            self.run.controller,
            lambda what, ref: self.run.truth.commanded(self, what, ref),
            self.run.place.ledger,
        )

    def mount(self, node: Node) -> Mount:
        """Return the way of one of its processes to the shared directory."""
        mount = Mount(node, self.run.weather, self.run.truth.observer(self))
        mount.stalled_until = self.stalled[1]
        self._mounts.append(mount)
        return mount

    def log(self, node: Node, role: Role, *, is_member: bool) -> RunLog:
        """Return the journal as one of its processes, or of its user's, sees it."""
        log = RunLog(self.mount(node), node, node.name, SimulatedLock(self.run.lock, node), role)
        log.is_member = is_member
        return log

    def _srun(self, relaunch: int) -> int:
        """Start the agents and wait for them; return their exit code."""
        self.run.truth.agents_begin(self)
        agents = self.run.world.new_node(self.agents_name)
        self.agents, self._listens, self.signals, self._agents_code = agents, False, 0, 0
        self.works, self.relaunch = False, relaunch
        self.run.agents_begin(self, agents)
        agents.start(lambda: self._agents(agents, relaunch))
        while not agents.is_over:
            self.script.wait(_POLL_S)
        return self._agents_code

    # the agents

    def _agents(self, node: Node, relaunch: int) -> None:
        node.wait(self.run.world.random.uniform(0.3, 2.0))  # until they have their handlers
        self._listens = True
        try:
            self._agents_code = self.run_agents(node, relaunch)
        except RunDirError as error:
            self.run.world.tell(f"{self.name}: refused: {error.message}")
            self._agents_code = ExitCode.USAGE
        self._end_threads()

    def run_agents(self, node: Node, relaunch: int) -> int:
        """Run the agents; return the exit code of srun.

        Raises:
            RunDirError: the run is another job's.
        """
        return Agents(self, node, relaunch).run()


class Agents:
    """The agents of one srun, as far as endings are concerned: one program in place of one for each node.

    Args:
        start: the start of the job that they belong to.
        node: where they run.
        relaunch: how often srun was started before in it.
    """

    def __init__(self, start: JobStart, node: Node, relaunch: int) -> None:
        self.start = start
        self.node = node
        self.epoch = Epoch(*start.key, relaunch)
        self.log = start.log(node, Role.AGENT, is_member=True)
        nodes = len(start.job.nodes)
        self.settings = MeetingSettings(min_nodes=nodes, max_nodes=nodes)
        self._dice = start.run.world.random
        self._notices: list[Notice] = []
        self._busy_since: float | None = None
        place = JobPlace(start.run.place.paths, start.job.ref, start.restart, start.job.nodes, None)
        self._watch = JobWatch(place, WatchOptions(), start.slurm(), ProcessClock(node), self)

    # hpc_elastic.slurm.watch.job_watch.Loop

    def hear(self, notice: Notice) -> None:
        """Take note of a notice of the watch."""
        self._notices.append(notice)

    def wake(self) -> None:
        """Do nothing: it looks often."""

    def held_up_s(self) -> float:
        """Return for how long a record is being read or written [s]."""
        return 0.0 if self._busy_since is None else self.start.run.world.now - self._busy_since

    def run(self) -> int:
        """Meet, work, and leave; return the exit code of srun.

        Raises:
            RunDirError: the run is another job's.
        """
        state = self._admitted(self._patiently(self.log.refresh))
        if has_ended(state):
            return state.ending.exit_code if state.ending is not None else ExitCode.FAILED
        names = self.start.job.nodes
        began = EpochStarted(self.epoch, self.start.job.ref, names, names[0], sizes_text(self.settings))
        state = self._admitted(self._write(began))
        if state.epoch != self.epoch or state.ending is not None:
            return self._sent_away(state)
        self.node.wait(self._dice.uniform(0.1, 1.0))
        if self.start.signals or self._patiently(self.log.refresh).leave_cause is Cause.STOP:
            return self._drain(1)
        state = self._meet()
        self.start.run.place.write(self.start.job.ref, "rank 0 trains")
        self.start.works = True
        self._watch.begin(is_first=True)
        return self._work(state)

    def _admitted(self, state: RunState) -> RunState:
        refuse_stranger(state, self.epoch, self.start.job.ref, self.settings, "the run directory")
        return state

    def _sent_away(self, state: RunState) -> int:
        if state.epoch > self.epoch:
            return ExitCode.FENCED
        return state.ending.exit_code if state.ending is not None else ExitCode.FENCED

    def _write(self, entry: Entry) -> RunState:
        return self._patiently(lambda: self.log.commit(lambda _state: entry))

    def _patiently(self, act: Callable[[], RunState]) -> RunState:
        self._busy_since = self.start.run.world.now
        while True:
            try:
                state = act()
            except StoreError:
                self.node.wait(_POLL_S)
                continue
            self._busy_since = None
            return state

    def _meet(self) -> RunState:
        """Form a round from the newest checkpoint."""
        step = self.start.run.place.newest_step
        mark = None if step == BEGINNING else MarkedCheckpoint(step, None)
        names = self.start.job.nodes
        members = tuple(Member(f"{name}.{self.start.restart}", name, 1) for name in names)
        number = self.log.state.rounds + 1
        return self._write(RoundFormed(number, self.epoch, members, names[0], 20_000, mark))

    def _work(self, state: RunState) -> int:
        """Train until there is a reason to stop."""
        run, start = self.start.run, self.start
        step = max(run.place.newest_step, 0)
        next_save = self._dice.uniform(*run.saves_after_s) + run.world.now
        done_at = run.world.now + self._dice.uniform(*_WORK_S)
        while True:
            self.node.wait(self._dice.uniform(0.3, 0.9))
            state = self._patiently(self.log.refresh)
            if state.epoch != self.epoch or state.ending is not None:
                return self._sent_away(state)
            step += 1
            start.succeeds |= run.world.now >= done_at
            if start.crashes or start.succeeds or start.lost_node:
                return self._end_round()
            if start.signals or self._notices or state.leave_cause is Cause.STOP:
                return self._drain(step)
            if run.world.now >= next_save:
                run.place.save(step)
                run.world.tell(f"{start.name}: saved step {step}")
                next_save = run.world.now + self._dice.uniform(*run.saves_after_s)

    def _end_round(self) -> int:
        """End by what has happened to the workers or to a node."""
        if self.start.crashes:
            self._write(RunEnded(Decision.FAILED, 1, "a worker failed", None, self.epoch))
            return 1
        if self.start.succeeds:
            self._write(RunEnded(Decision.DONE, 0, "", None, self.epoch))
            return 0
        return self._lose(self.start.lost_node)

    def _drain(self, step: int) -> int:
        """Save and leave, as Slurm wants the nodes."""
        node, run = self.start.job.nodes[0], self.start.run
        asked = Asked("SIGTERM") if self.start.signals else Asked()
        if not self.log.state.leaving:
            self._write(DrainRequested(Cause.PREEMPTION, node, AfterDrain.LEAVE, "", self.epoch, asked=asked))
        running = self.log.state.running
        if running is not None:
            self._write(StopAgreed(running.number, step))
        self._wait_asking(self._dice.uniform(*run.save_takes_s))
        if running is not None:
            run.place.save(step)
        saved = run.place.newest_step
        return self._leave(None if saved == BEGINNING else saved)

    def _wait_asking(self, seconds: float) -> None:
        """Wait [s], and ask Slurm about each signal, which may have another reason, until it has answered."""
        world, asked_for = self.start.run.world, 0
        until = world.now + seconds
        while world.now < until or self._watch.is_asking:
            while asked_for < self.start.signals:
                self._watch.ask_why(self.node.monotonic(), is_warning=False)
                asked_for += 1
            self.node.wait(_LOOK_S)
            self._explain()

    def _explain(self) -> None:
        """Record what Slurm has told of a signal."""
        while self._notices:
            told = self._notices.pop(0)
            if told.explains:
                self._write(DrainExplained(self.epoch, told.cause, told.detail, answer=told.answer))

    def _lose(self, name: str) -> int:
        """Leave, as too few nodes are left."""
        self._wait_asking(_LEASE_S)
        running = self.log.state.running
        assert running is not None
        self._write(RoundEnded(running.number, Cause.NODE_LOSS, (name,), None))
        return self._leave(None)

    def _leave(self, step: int | None) -> int:
        cause = self.log.state.leave_cause or Cause.NODE_LOSS
        asked = Asked() if self.log.state.drain is None else self.log.state.drain.asked
        state = self._write(Drained(self.epoch, cause, step, "", asked=asked))
        if state.epoch != self.epoch:
            return ExitCode.FENCED
        if self.start.script.is_killed:
            self._in_place_of_the_script()
        return ExitCode.REQUEUE

    def _in_place_of_the_script(self) -> None:
        """Finish the start where the batch script is gone, as `hpc_elastic.slurm.end.batch_host` does."""
        start, slurm, ref = self.start, self.start.slurm(), self.start.job.ref
        if start.lost_node == start.nodes[0]:
            clock = ProcessClock(self.node)
            wait_until_removed(slurm, ref, start.lost_node, clock, handled=lambda: False, pause_s=1.0)
        elif start.why_it_ends(self.node) is not Standing.SCRIPT_DIED:
            return
        start.finish_in_its_place(self.node, self.epoch)
