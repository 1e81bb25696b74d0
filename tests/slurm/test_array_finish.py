"""The end of one task of an array, with real records and a Slurm that only answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart, epoch_now
from hpc_elastic.record.journal import (
    AfterDrain,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    NodeUnfit,
    Note,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
    StopKind,
    TaskStopped,
)
from hpc_elastic.record.run_log import open_log, read_records, read_state
from hpc_elastic.slurm.client.answers import ListedNode, SlurmTask
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.end.bad_nodes import begin_with_nodes
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.end.history import HOW
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.request import plan, read_template
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.array_stand_in import ArraySlurm
from tests.slurm.failed_lines import failed_line

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ())
ME = "n2.1@7_1-0-0"
ROUND = RoundFormed(1, EPOCH, (Member("n1.1@7_0-0-0", "n1", 1), Member(ME, "n2", 1)), "n1", 1234, None)
LEFT = NodeLeft(EPOCH, ME, "n2", Cause.PREEMPTION, "SIGTERM")
MINE = SlurmTask("7", 1, JobState.RUNNING, "n2")
OTHER = SlurmTask("7", 0, JobState.RUNNING, "n1")
WAITING = SlurmTask("7", 2, JobState.PENDING)


class TaskEnd:
    """The run of an array whose task 7_1 ends.

    Args:
        root: an empty directory.
        slurm: what Slurm answers.
    """

    def __init__(self, root: Path, slurm: ArraySlurm) -> None:
        self.paths = RunPaths(root)
        for directory in self.paths.directories():
            Path(directory).mkdir(parents=True, exist_ok=True)
        if not Path(self.paths.identity).exists():
            Path(self.paths.identity).write_text("{}")
        self.slurm = slurm
        self.said: list[str] = []
        self.budgets = RequeueBudgets()

    def finish(
        self,
        *entries: Entry,
        code: int = 75,
        index: int = 1,
        restart: int = 0,
        failure: str = "",
        clock: FakeClock | None = None,
    ) -> Ended:
        """Write records, then end a task's start whose srun ended with a code."""
        log = open_log(self.paths, "test")
        for entry in entries:
            log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
        environ = {
            Env.MODE: "array",
            Env.SUBMISSION: "0",
            "SLURM_ARRAY_JOB_ID": "7",
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_RESTART_COUNT": str(restart),
            "SLURM_JOB_ID": "8",
            "SLURM_JOB_NODELIST": f"n{index + 1}",
        }
        start = Start.from_environ(self.paths, environ, relaunch=0, srun_exit_code=code)
        start = start._replace(launch_failure=failed_line(failure) if failure else None)
        return Finish(start, self.budgets, self.slurm, clock or FakeClock(), self.said.append).run()

    def log(self, text: str) -> None:
        """Write what the batch script of task 1, and bash, have printed."""
        Path(self.paths.batch_log.replace("%j", "7_1")).write_text(text)


def test_only_this_task_is_requeued(tmp_path: Path) -> None:
    """By the name of the task: the job id of the last one is that of the whole array."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    assert ExitCode.REQUEUE == end.finish(STARTED, ROUND, LEFT).code
    assert ["requeue 7_1"] == end.slurm.done
    assert 0 == read_state(end.paths).requeues


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ((STARTED, ROUND), [Cause.PREEMPTION]),  # the directory did not answer the agent as it left
        ((STARTED, ROUND, LEFT._replace(cause=Cause.TIME_LIMIT)), [Cause.TIME_LIMIT]),
        ((STARTED, ROUND, RoundEnded(1, Cause.NODE_LOSS, ("n2",), None)), []),  # by the others, before
        ((STARTED,), []),
    ],
)
def test_a_preempted_task_whose_agent_left_without_a_word_is_not_a_lost_node(
    tmp_path: Path, entries: tuple[Entry, ...], left: list[Cause]
) -> None:
    """Its batch script records that its node lives, and why it leaves, unless a record tells of it."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER], PreemptTime="2026-11-21T20:00:00"))
    assert ExitCode.REQUEUE == end.finish(*entries).code
    found = [one.entry for one in read_records(end.paths) if isinstance(one.entry, NodeLeft)]
    assert [(ME, cause) for cause in left] == [(one.node_id, one.cause) for one in found]


def test_a_member_whose_follower_has_left_is_charged_as_the_task_goes_back(tmp_path: Path) -> None:
    """The next start would take the requeue of finish for one by hand: an agent was killed, and the agent
    started in its place left before it was in a round.
    """
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    assert end.finish(STARTED, ROUND).code == ExitCode.REQUEUE
    left = [one.entry for one in read_records(end.paths) if isinstance(one.entry, NodeLeft)]
    assert [(one.node_id, one.cause) for one in left] == [(ME, Cause.AGENT_ERROR)]
    assert read_state(end.paths).running is None


@pytest.mark.parametrize("is_held", [True, False])
def test_a_task_of_a_held_run_says_nothing_of_its_node(tmp_path: Path, *, is_held: bool) -> None:
    """It begins nothing there; otherwise it leaves a node that was lost twice, and says so."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    end.slurm.all_nodes = [ListedNode(f"n{number}", "idle") for number in (1, 2, 3)]
    log = open_log(end.paths, "test")
    held = RunEnded(Decision.HELD, ExitCode.REQUEUE, "a budget is spent", None)
    lost = [
        entry
        for number in (1, 2)
        for entry in (ROUND._replace(number=number), RoundEnded(number, Cause.NODE_LOSS, ("n2",), None))
    ]
    for entry in (STARTED, *lost, *([held] if is_held else [])):
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    start = Start(
        *(end.paths, EPOCH._replace(restart=2), "7_1", 1),
        local=False,
        srun_exit_code=0,
        task=TaskStart("7_1", 2, 0),
        node_list="n2",
    )
    finish = Finish(start, end.budgets, end.slurm, FakeClock(), end.said.append)
    ended = begin_with_nodes(finish, end.said.append)
    assert is_held == (ended is None), end.said
    found = [type(one.entry) for one in read_records(end.paths)]
    assert ([] if is_held else [NodeUnfit, NodeLeft]) == [
        one for one in found if one in (NodeUnfit, NodeLeft)
    ]


def test_a_task_whose_program_asks_nothing_says_what_is_not_known(tmp_path: Path) -> None:
    """The other tasks begin anew, which the program may or may not have saved for; with the lines to add."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "")
    end.finish(
        STARTED, ROUND, asked, StopAgreed(1, -1), RoundEnded(1, Cause.PREEMPTION, ("n2",), None, None), LEFT
    )
    assert f"nothing is known of its saves, so each round may begin anew: {HOW}" in end.said


def test_a_task_that_trains_for_little_of_its_time_limit_says_so(tmp_path: Path) -> None:
    """With what would leave it more, as a job of several nodes does."""
    times = {"StartTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:02:00"}
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER], **times))
    asked = DrainRequested(Cause.TIME_LIMIT, "n2", AfterDrain.REJOIN, "")
    ended = RoundEnded(1, Cause.TIME_LIMIT, ("n2",), None, 9)
    end.finish(STARTED, ROUND, asked, StopAgreed(1, 9), ended, LEFT._replace(cause=Cause.TIME_LIMIT))
    told = "this start has trained for 0 s of a time limit of 120 s; a longer --time, or a "
    assert [told] == [line[: len(told)] for line in end.said if "trained" in line]


def test_a_run_that_goes_back_as_a_whole_is_recorded_once(tmp_path: Path) -> None:
    """Whichever task is the first."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    drained = Drained(EPOCH, Cause.JOIN_TIMEOUT, None, "1 of 2")
    end.finish(STARTED, drained)
    end.finish()
    requeued = [record.entry for record in read_records(end.paths) if isinstance(record.entry, Requeued)]
    assert [Requeued(EPOCH, Cause.JOIN_TIMEOUT)] == requeued
    assert ["requeue 7_1"] * 2 == end.slurm.done


@pytest.mark.parametrize(("decision", "code"), [(Decision.DONE, 0), (Decision.FAILED, 3)])
def test_a_verdict_takes_the_waiting_tasks_away(tmp_path: Path, decision: Decision, code: int) -> None:
    """Of all arrays of the run; those that run end by the record."""
    further = [SlurmTask("9", number, JobState.PENDING) for number in (0, 1)]
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER, WAITING, *further]))
    assert code == end.finish(STARTED, RunEnded(decision, code, "why", None), code=code).code
    assert ["cancel waiting 7", "cancel waiting 9"] == end.slurm.done
    assert {"7"} == set(end.slurm.asked)
    took = [line.partition(" out of the queue")[0] for line in end.said if line.startswith("took ")]
    assert ["took 1 task of array 7", "took 2 tasks of array 9"] == took


def test_a_verdict_holds_without_slurm(tmp_path: Path) -> None:
    """The tasks that stay in the queue find it when they start."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, WAITING]))
    end.slurm.is_silent = True
    assert 0 == end.finish(STARTED, RunEnded(Decision.DONE, 0, "", None), code=0).code
    assert any("squeue tells nothing" in line for line in end.said)


def test_the_last_cancelled_task_ends_the_run(tmp_path: Path) -> None:
    """One of several only leaves it."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER], JobState="COMPLETING"))
    assert 130 == end.finish(STARTED, ROUND, LEFT).code
    assert read_state(end.paths).ending is None
    end.slurm.tasks = [MINE._replace(state=JobState.COMPLETING), OTHER._replace(state=JobState.COMPLETING)]
    assert 130 == end.finish().code
    ending = read_state(end.paths).ending
    assert ending is not None
    assert Decision.CANCELLED is ending.decision
    assert [] == end.slurm.done


def test_a_left_over_asks_nobody(tmp_path: Path) -> None:
    """The members' names tell that the task runs elsewhere; Slurm may not be reachable from here."""
    end = TaskEnd(tmp_path, ArraySlurm())
    end.slurm.is_silent = True
    (tmp_path / "members" / "n5.1@7_1-1-0+0-0-0-0+running+1+3+4").touch()
    assert ExitCode.FENCED == end.finish(STARTED, ROUND, code=77).code
    assert 1 == len(end.said)


def test_names_that_cannot_be_listed_for_a_while_cost_no_task(tmp_path: Path) -> None:
    """A file server that is away for a moment is waited for, whatever is read of it."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    members, away = Path(end.paths.members), tmp_path / "away"

    class Clock(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if away.exists():
                members.unlink()
                away.rename(members)

    members.rename(away)
    members.touch()
    assert ExitCode.REQUEUE == end.finish(STARTED, ROUND, LEFT, clock=Clock()).code
    assert ["requeue 7_1"] == end.slurm.done
    assert "then the task ends with 76 and is not requeued" in end.said[0]


def test_a_killed_agent_is_started_again(tmp_path: Path) -> None:
    """In the same task, on its one node."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    assert (ExitCode.RELAUNCH, 1) == end.finish(STARTED, ROUND, code=137)[:2]
    note = read_records(end.paths)[-1].entry
    assert isinstance(note, Note)
    assert note.text.startswith("task 7_1: srun ended with exit code 137")


def test_a_program_that_is_not_there_gives_the_task_up_at_once(tmp_path: Path) -> None:
    """Where nothing has worked yet it would fail again; once a round was formed it is this node's fault."""
    wrong = "setup failed (exit code 127): nosuch --load"
    end = TaskEnd(tmp_path, ArraySlurm([MINE]))
    end.log(f"job.sbatch: line 9: nosuch: command not found\nhpc_elastic: {wrong}\n")
    assert ExitCode.FAILED == end.finish(failure=wrong).code
    ending = read_state(end.paths).ending
    assert ending is not None
    assert f"{wrong} (nosuch: command not found); it would fail again, so mend it in job." in ending.reason
    assert [] == end.slurm.done


def test_a_line_that_bash_cannot_make_out_is_told_in_its_words(tmp_path: Path) -> None:
    """Not in those of the line of ours that was run last, which says nothing to anybody."""
    own = """setup failed (exit code 2): trap 'failed setup "$?" "$BASH_COMMAND"' ERR EXIT"""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    end.log(f"job.sbatch: line 9: syntax error near `)'\nhpc_elastic: {own}\n")
    assert ExitCode.FAILED == end.finish(failure=own).code
    note = read_records(end.paths)[-1].entry
    assert isinstance(note, TaskStopped)
    assert "a line that bash cannot make out (syntax error near `)')" in note.detail
    assert "trap" not in note.detail


def test_a_program_that_other_nodes_have_is_looked_for_again(tmp_path: Path) -> None:
    """Slurm may start the task on another node."""
    wrong = "setup failed (exit code 127): nosuch"
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    end.log(f"job.sbatch: line 9: nosuch: command not found\nhpc_elastic: {wrong}\n")
    assert ExitCode.REQUEUE == end.finish(STARTED, ROUND, failure=wrong).code
    assert any("nosuch: command not found" in line for line in end.said)
    assert ["requeue 7_1"] == end.slurm.done


def test_a_refused_requeue_costs_the_run_only_this_task(tmp_path: Path) -> None:
    """It is tried for minutes; then the others go on, and without others the run has failed."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    end.slurm.refused = True
    assert ExitCode.FAILED == end.finish(STARTED, ROUND, LEFT).code
    assert read_state(end.paths).ending is None
    end.slurm.tasks = [MINE]
    assert ExitCode.FAILED == end.finish().code
    ending = read_state(end.paths).ending
    assert ending is not None
    assert "not now" in ending.reason


@pytest.mark.parametrize("refused", [True, False], ids=["Slurm refuses", "Requeue=0"])
def test_another_task_takes_the_place_of_one_that_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    """As a further array of the same submission, once; without an answer of sbatch it is found."""
    monkeypatch.chdir(tmp_path)
    end = stored(tmp_path / "run", ArraySlurm([MINE, OTHER], Requeue="1" if refused else "0"))
    end.slurm.refused = refused
    ended = end.finish(STARTED, ROUND, LEFT)
    assert (ExitCode.REQUEUE, "99_0") == (ended.code, ended.next_job)
    (words,) = end.slurm.queued
    assert ("--array=0-0", "--dependency=afterany:7_1") == (words[0], words[2])
    assert words[1].endswith(":cafe for:7_1 mine")
    assert (end.paths.script, "0", "1") == tuple(words[3:])
    note = read_records(end.paths)[-1].entry
    assert isinstance(note, Note)
    assert "task 99_0 goes on in its place" in note.text
    end.slurm.commented = ["98"]
    assert "98_0" == end.finish().next_job
    assert 1 == len(end.slurm.queued)
    assert read_state(end.paths).ending is None


def test_a_task_that_nobody_can_queue_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason has Slurm's words."""
    monkeypatch.chdir(tmp_path)
    end = stored(tmp_path / "run", ArraySlurm([MINE], Requeue="0"))
    end.slurm.refusal = "no more jobs"
    assert ExitCode.FAILED == end.finish(STARTED, ROUND, LEFT).code
    ending = read_state(end.paths).ending
    assert ending is not None
    assert (
        "did not requeue the task: Requeue=0; sbatch: sbatch failed with exit code 1; Slurm says: no more"
        in ending.reason
    )


def test_a_task_is_queued_again_as_soon_as_slurm_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller is away for as long as a requeue would be tried."""
    monkeypatch.chdir(tmp_path)
    end = stored(tmp_path / "run", ArraySlurm([MINE, OTHER], Requeue="0"))
    end.slurm.refusal = "sbatch: error: Unable to contact slurm controller (connect failure)"

    class Clock(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            end.slurm.refusal = end.slurm.refusal if self.monotonic() < began + 1200 else ""

    clock = Clock()
    began = clock.monotonic()
    assert "99_0" == end.finish(STARTED, ROUND, LEFT, clock=clock).next_job


def test_a_task_of_no_use_has_no_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task after the other would fail in the same way, and nobody would count them."""
    monkeypatch.chdir(tmp_path)
    end = stored(tmp_path / "run", ArraySlurm([MINE, OTHER], Requeue="0"))
    assert ExitCode.FAILED == end.finish(STARTED, failure="setup failed (exit code 1): module load x").code
    assert [] == end.slurm.queued
    assert "module load x; Slurm may not requeue this task (Requeue=0); this task is given up" in end.said[0]


def stored(root: Path, slurm: ArraySlurm) -> TaskEnd:
    """Return the end of a task of a run that was submitted."""
    spec = JobSpec(command="train.py", nodes=2, mode="array", run_dir=str(root), comment="mine")
    wanted = plan(spec, read_template("array"), now_s=0)
    run_dir.create(wanted, now_s=0)
    submissions.record(wanted.paths, Submission(0, "hpc_elastic:cafe", "7"))
    return TaskEnd(root, slurm)


def test_a_task_cancelled_while_it_is_finished_is_not_brought_back(tmp_path: Path) -> None:
    """Slurm would requeue it: between the decision and the requeue minutes may pass."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    end.slurm.later = {"JobState": "COMPLETING"}
    assert 130 == end.finish(STARTED, ROUND, LEFT).code
    assert [] == end.slurm.done
    assert "cancelled meanwhile" in end.said[-1]


def test_a_failing_line_of_the_script_is_recorded(tmp_path: Path) -> None:
    """Where and what, also before any agent came."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    assert ExitCode.REQUEUE == end.finish(failure="setup failed (exit code 1): module load x").code
    left = read_records(end.paths)[-1].entry
    assert isinstance(left, TaskStopped)
    assert ("n2", StopKind.FAILED) == (left.node, left.how)
    assert "module load x" in left.detail


def test_tasks_that_are_given_up_at_once_end_the_run(tmp_path: Path) -> None:
    """Each sees that the other one still runs; the later record sees the earlier one."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER], Restarts="3"))
    wrong = "setup failed (exit code 1): module load x"
    assert ExitCode.FAILED == end.finish(restart=3, failure=wrong).code
    assert read_state(end.paths).ending is None
    assert ExitCode.FAILED == end.finish(index=0, restart=3, failure=wrong).code
    ending = read_state(end.paths).ending
    assert ending is not None
    assert Decision.FAILED is ending.decision
    assert "module load x" in ending.reason


def test_a_spent_budget_holds_the_task_until_it_is_released(tmp_path: Path) -> None:
    """A later start of a task that was held goes on with the run; that of another one does not."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    assert ExitCode.REQUEUE == end.finish(STARTED, RunEnded(Decision.HELD, 75, "spent", None)).code
    assert ["requeuehold 7_1"] == end.slurm.done
    assert "scontrol release 7" in end.said[-1]
    state = read_state(end.paths)
    assert Epoch(0, 0, 1, 0) == epoch_now(state, 0, TaskStart("7_1", 1, 0))
    assert EPOCH == epoch_now(state, 0, TaskStart("7_1", 0, 1)) == epoch_now(state, 0, TaskStart("7_2", 0, 0))


def test_a_run_that_was_released_meanwhile_is_not_held_again(tmp_path: Path) -> None:
    """A task that waited for long before it could write knows nothing of the release: it looks once more."""
    spent = RunEnded(Decision.HELD, 75, "spent", None, None, Budget.PREEMPTIONS)

    class Released(ArraySlurm):
        def array_tasks(self, token: str, array: str) -> list[SlurmTask]:
            if not self.asked:
                log = open_log(end.paths, "test")
                for entry in (spent, EpochStarted(EPOCH._replace(restart=1), "7", ())):
                    log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
            return super().array_tasks(token, array)

    end = TaskEnd(tmp_path, Released([MINE, OTHER], PreemptTime="2026-11-21T20:00:00"))
    end.budgets = RequeueBudgets(max_preemptions=0)
    drain = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.LEAVE, "")
    end.finish(STARTED, ROUND, LEFT, drain, Drained(EPOCH, Cause.PREEMPTION, None, ""))
    held = [one.entry for one in read_records(end.paths) if isinstance(one.entry, RunEnded)]
    assert held == [spent]
    assert [end.slurm.done[-1]] == ["requeue 7_1"]


def test_a_task_that_cannot_be_held_tells_how_to_go_on(tmp_path: Path) -> None:
    """The run is held, and nothing of it waits in the queue."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE]))
    end.slurm.refused = True
    end.finish(STARTED, RunEnded(Decision.HELD, 75, "spent", None))
    assert "Slurm does not hold task 7_1, which ends: " in end.said[-2]
    assert end.said[-1].endswith(f"hpc-elastic submit --resume {tmp_path}")


def test_flags_that_are_wrong_are_recorded_though_no_agent_came(tmp_path: Path) -> None:
    """The ending belongs to this submission, and to the array."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, WAITING]))
    assert ExitCode.FAILED == end.finish(code=2).code
    state = read_state(end.paths)
    assert ("7", EPOCH) == (state.job_id, state.epoch)
    assert state.ending is not None
    assert ["cancel waiting 7"] == end.slurm.done


@pytest.mark.parametrize(("holds", "code"), [(True, ExitCode.REQUEUE), (False, ExitCode.FAILED)])
def test_a_spent_budget_has_the_other_tasks_save_first(
    tmp_path: Path, *, holds: bool, code: ExitCode
) -> None:
    """Then this task waits until it is released, where its user wants that; else it has failed."""
    end = TaskEnd(tmp_path, ArraySlurm([MINE, OTHER]))
    again = RoundFormed(2, EPOCH, ROUND.members[:1], "n1", 1, None)
    asked = DrainRequested(Cause.PREEMPTION, "n2", AfterDrain.REJOIN, "SIGTERM")
    end.budgets = RequeueBudgets(max_preemptions=0, holds=holds)
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    assert code == end.finish(STARTED, ROUND, asked, ended, LEFT, again).code
    state = read_state(end.paths)
    assert state.drain is not None
    assert (Cause.PREEMPTION, AfterDrain.LEAVE) == (state.drain.cause, state.drain.then)
    assert (["requeuehold 7_1"] if holds else []) == end.slurm.done
