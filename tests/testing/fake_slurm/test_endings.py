"""How jobs of the fake Slurm end and come back: the state alone, without processes."""

from __future__ import annotations

import pytest

from hpc_elastic.testing.fake_slurm.cluster import endings, schedule, steps
from hpc_elastic.testing.fake_slurm.cluster.endings import KillAll, ReachNode, SendSignals, StartScript, Turn
from hpc_elastic.testing.fake_slurm.cluster.model import (
    BATCH,
    Ending,
    Job,
    JobRequest,
    Place,
    Settings,
    State,
    Warning_,
    World,
)

NOW = 1000.0
LOW = JobRequest(min_nodes=2, max_nodes=2, limit_s=600)
SETTINGS = Settings(
    start_delay=0, nodes=2, grace=30, kill_wait=20, cred_expire=119, slurmd_timeout=300, speed=60
)


class Story:
    """A cluster with one running job of two nodes and a step on both; time passes by hand."""

    def __init__(self, request: JobRequest = LOW, settings: Settings = SETTINGS) -> None:
        self.world = World.new(settings).with_job(Job(1, request, NOW, NOW, 1))
        self.now = NOW
        self.actions: list[object] = []
        self.do()
        asked = steps.StepRequest(nodes=2, ntasks=2, no_kill=request.no_kill)
        self.do(lambda turn: steps.create(turn, turn.job(1), asked, 7))

    def do(self, change: object = None, after: float = 0.0) -> Turn:
        """Let something happen some time later."""
        self.now += after
        turn = Turn(self.world, self.now)
        if callable(change):
            change(turn)
        schedule.run(turn)
        self.world = turn.world
        self.actions = [*turn.actions]
        return turn

    def high(self) -> None:
        """Submit a job that wants all nodes and may preempt for it."""
        other = Job(2, LOW._replace(partition="high", exclusive=True), self.now, self.now, 2)
        self.do(lambda turn: turn.put(other))

    def all_gone(self) -> None:
        """Let all processes of the job end."""
        for place in sorted(self.job.live):
            self.do(lambda turn, place=place: schedule.place_gone(turn, place))

    @property
    def job(self) -> Job:
        """The job as it is."""
        return self.world.jobs[1]

    @property
    def told(self) -> dict[str, tuple[int, ...]]:
        """Who got signals in the last turn."""
        return {
            f"{place.step}@{place.node}": tuple(map(int, action.numbers))
            for action in self.actions
            if isinstance(action, SendSignals)
            for place in action.places
        }


ALL = {"batch@node1", "0@node1", "0@node2"}


def test_a_job_starts_on_free_nodes_at_once() -> None:
    """Its script is started on the first of its nodes."""
    world = World.new(SETTINGS).with_job(Job(1, LOW, NOW, NOW, 1))
    turn = Turn(world, NOW)
    schedule.run(turn)
    assert [StartScript(1)] == turn.actions
    assert (State.RUNNING, ("node1", "node2")) == (turn.job(1).state, turn.job(1).nodes)


def test_grace_warns_tasks_then_everybody_then_kills() -> None:
    """GraceTime, then SIGTERM to all, then KillWait; the restart counts when the job is ended."""
    story = Story()
    story.high()
    assert {"0@node1": (15, 18), "0@node2": (15, 18)} == story.told
    assert (True, NOW + 30, 0) == (story.job.in_grace, story.job.end_s, story.job.restarts)
    story.do(after=30)
    assert ALL == set(story.told)
    assert (State.COMPLETING, 1) == (story.job.state, story.job.restarts)
    story.do(after=20)
    assert [KillAll(tuple(sorted(story.job.live)))] == story.actions
    story.all_gone()
    assert (State.PENDING, "BeginTime", NOW + 52) == (story.job.state, story.job.reason, story.job.eligible_s)
    assert ["PREEMPTED"] == [row.state for row in story.job.rows]


@pytest.mark.parametrize(
    ("status", "state", "restarts"),
    [(0, State.COMPLETED, 0), (75 << 8, State.FAILED, 0), (99 << 8, State.PENDING, 1)],
    ids=["well", "badly", "with RequeueExit"],
)
def test_a_script_that_ends_within_its_grace_decides(status: int, state: State, restarts: int) -> None:
    """Exit code 0 completes the job, another one fails it, RequeueExit sends it back."""
    story = Story(settings=SETTINGS._replace(requeue_exit=(99,)))
    story.high()
    story.do(lambda turn: endings.script_ended(turn, Place(1, 0, BATCH, "node1"), status), after=5)
    story.all_gone()
    assert (state, restarts) == (story.job.state, story.job.restarts)


@pytest.mark.parametrize(
    ("mode", "requeue", "state"),
    [("REQUEUE", True, "PENDING"), ("REQUEUE", False, "PREEMPTED"), ("CANCEL", True, "PREEMPTED")],
)
def test_mode_and_job_decide_whether_a_preempted_job_comes_back(mode: str, requeue: bool, state: str) -> None:
    """A final PREEMPTED job says when: PreemptTime is its EndTime."""
    story = Story(LOW._replace(requeue=requeue), SETTINGS._replace(preempt=mode))
    story.high()
    story.do(after=30)
    story.all_gone()
    assert state == story.job.state.value
    assert (story.job.preempt_s == story.job.end_s) or state == "PENDING"


@pytest.mark.parametrize(("to_script", "who"), [(False, {"0@node1", "0@node2"}), (True, {"batch@node1"})])
def test_a_warning_comes_once_ahead_of_the_limit(to_script: bool, who: set[str]) -> None:
    """--signal=USR1@60 goes to the tasks, with B: to the script; the limit tells all and is final."""
    story = Story(LOW._replace(warning=Warning_(10, 60, to_script)))
    story.do(after=539)
    assert {} == story.told
    story.do(after=1)
    assert dict.fromkeys(who, (10, 18)) == story.told
    story.do(after=30)
    assert {} == story.told
    story.do(after=30)
    assert ALL == set(story.told)
    assert ("TimeLimit", 0) == (story.job.reason, story.job.restarts)
    story.all_gone()
    assert State.TIMEOUT is story.job.state


def test_a_site_may_have_preemption_use_the_warning() -> None:
    """With preempt_send_user_signal the script gets its B:USR1 instead of SIGTERM to the tasks."""
    settings = SETTINGS._replace(user_signal=True)
    story = Story(LOW._replace(warning=Warning_(10, 60, to_script=True)), settings)
    story.high()
    assert {"batch@node1": (10, 18)} == story.told
    assert [ReachNode.FIRST] == [action.reach for action in story.actions if isinstance(action, SendSignals)]


def test_a_silent_node_is_missed_after_its_time() -> None:
    """SlurmdTimeout divided by speed later the job ends and is put back; who is silent is told nothing."""
    story = Story()
    story.do(lambda turn: schedule.silence(turn, "node2"))
    story.do(after=4.9)
    assert {} == story.told
    story.do(after=0.1)
    assert {"batch@node1", "0@node1"} == set(story.told)
    assert 1 == story.job.restarts
    story.all_gone()
    assert ["NODE_FAIL"] == [row.state for row in story.job.rows]


def test_a_job_without_kill_goes_on_with_fewer_nodes() -> None:
    """With --no-kill of sbatch and srun nobody is told; sacct has a line for each size."""
    story = Story(LOW._replace(no_kill=True))
    story.do(lambda turn: schedule.silence(turn, "node1"))
    story.do(after=5)
    assert {} == story.told
    assert (State.RUNNING, ("node2",), None) == (story.job.state, story.job.nodes, story.job.script)
    assert ["RESIZING"] == [row.state for row in story.job.rows]


def test_cancelling_beats_a_requeue_under_way_and_the_other_way_round() -> None:
    """The last wish counts: scancel of a job that goes back ends it, a requeue of a dying one revives it."""
    back = Story()
    back.do(lambda turn: endings.requeue(turn, turn.job(1)))
    back.do(lambda turn: endings.cancel(turn, turn.job(1), 1001))
    back.all_gone()
    assert State.CANCELLED is back.job.state
    revived = Story()
    revived.do(lambda turn: endings.cancel(turn, turn.job(1), 1001))
    revived.do(lambda turn: endings.requeue(turn, turn.job(1)))
    revived.all_gone()
    assert (State.PENDING, 1) == (revived.job.state, revived.job.restarts)


def test_what_slurm_refuses() -> None:
    """A pending job cannot be requeued, nor one submitted with --no-requeue."""
    story = Story(LOW._replace(requeue=False))
    refused: list[str] = []
    story.do(lambda turn: refused.append(endings.requeue(turn, turn.job(1))))
    waiting = Job(3, LOW, NOW, NOW + 99, 3)
    story.do(lambda turn: refused.append(endings.requeue(turn, turn.put(waiting))))
    assert ["Requested operation is presently disabled", "Job is pending execution"] == refused


def test_exit_codes_are_written_as_slurm_does() -> None:
    """Scontrol shows code and signal; sacct takes a shell's 128 + n for signal n in the first place."""
    assert ["137:0", "0:9", "3:0"] == [endings.exit_text(status) for status in (137 << 8, 9, 3 << 8)]
    assert ["9:0", "0:9", "3:0"] == [endings.account_code(status) for status in (137 << 8, 9, 3 << 8)]


def test_stale_news_change_nothing() -> None:
    """What is heard of an earlier start of a job is passed over."""
    story = Story()
    before = story.job
    story.do(lambda turn: endings.script_ended(turn, Place(1, 5, BATCH, "node1"), 0))
    story.do(lambda turn: schedule.place_gone(turn, Place(1, 5, "0", "node1")))
    assert before == story.job
    assert Ending(State.COMPLETED).requeue is False
