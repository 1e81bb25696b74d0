"""How many tasks run: what Slurm is told, and how an array looks as a whole."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import Epoch, EpochStarted, SizeWanted
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.report.run_status import RunView, status_of
from hpc_elastic.slurm.client.answers import SlurmTask, max_array_size, parse_tasks
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.operate.scale import TaskShare, scale, shares
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.run_files import begin_of, facts_of, job_ids, read_run
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.request import plan, read_template
from hpc_elastic.slurm.submit.submit import Submitter
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.array_stand_in import ArraySlurm

FOUR = [SlurmTask("7", number, JobState.RUNNING, f"n{number}") for number in range(4)]
MORE = SlurmTask("9", 0, JobState.RUNNING, "n9")
COMMENT = "hpc_elastic:ab"
QUEUE = [
    ("7", "0", "RUNNING", "n1", "None", "hpc_elastic:ab my comment"),
    ("7", "1", "PENDING", "", "launch failed requeued held", "hpc_elastic:ab"),
    ("9", "0", "COMPLETING", "n3", "None", "hpc_elastic:ab"),
    ("9", "[1-3]", "PENDING", "", "Resources", "hpc_elastic:ab"),
    ("8", "N/A", "RUNNING", "n4", "None", "hpc_elastic:ab"),
    ("5", "0", "RUNNING", "n5", "None", "hpc_elastic:abc"),
]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return a run in array mode of 1 to 4 nodes that was submitted as array 7 and has begun."""
    spec = JobSpec(command="true", nodes="1:4", mode="array", run_dir=str(tmp_path / "run"))
    wanted = plan(spec, read_template("array"), now_s=0)
    run_dir.create(wanted, now_s=0)
    submissions.announce(wanted.paths, 0, wanted.token, now_s=0)
    submissions.record(wanted.paths, Submission(0, wanted.token, "7"))
    open_log(wanted.paths, "n1").commit(lambda _: EpochStarted(Epoch(0, 0, 0, 0), "7", ()))
    return wanted.paths


def test_the_tasks_of_a_submission_are_found_by_its_token() -> None:
    """Other jobs of the user's are not counted, nor what squeue did not list task by task."""
    found = parse_tasks(QUEUE, token=COMMENT, array="7")
    assert ["7_0", "7_1", "9_0"] == [task.name for task in found]
    assert [(True, False), (False, True), (False, False)] == [
        (task.is_running, task.is_waiting) for task in found
    ]
    assert "launch_failed_requeued_held" == found[1].reason
    assert ["5_0"] == [task.name for task in parse_tasks(QUEUE, token="", array="5")]


def test_the_largest_array_is_read_from_the_settings() -> None:
    """A cluster that does not tell sets no limit here."""
    assert 1001 == max_array_size("MailProg                = /bin/mail\nMaxArraySize            = 1001\n")
    assert max_array_size("MaxJobCount = 5") is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (5, [TaskShare("7", 4, 4), TaskShare("9", 1, 1)]),
        (4, [TaskShare("7", 4, 4), TaskShare("9", 1, 0)]),
        (1, [TaskShare("7", 4, 1), TaskShare("9", 1, 0)]),
    ],
)
def test_older_arrays_keep_their_tasks(wanted: int, expected: list[TaskShare]) -> None:
    """An array of which nothing is needed gets none."""
    assert expected == shares([MORE, *FOUR], wanted)


def test_fewer_nodes_are_a_throttle(paths: RunPaths) -> None:
    """The agents are told by a record that the others are not to stand by."""
    slurm, said = ArraySlurm(FOUR), []  # type: ignore[var-annotated]
    scale(paths, 2, said.append, slurm=slurm)
    assert ["throttle 7 2"] == slurm.done
    assert SizeWanted(0, 2, "hpc-elastic scale", 0) == read_state(paths).size


def test_spares_that_are_kept_run_on(paths: RunPaths) -> None:
    """They stand by until one is needed."""
    slurm = ArraySlurm(FOUR)
    scale(paths, 2, print, slurm=slurm, keep_spares=True)
    assert ["throttle 7 0"] == slurm.done
    assert SizeWanted(0, 2, "hpc-elastic scale", None) == read_state(paths).size


def test_more_nodes_than_tasks_are_a_further_array(paths: RunPaths) -> None:
    """Of the same script and submission; what was cancelled is replaced, too."""
    slurm = ArraySlurm(FOUR[1:])
    scale(paths, 6, print, slurm=slurm)
    assert ["sbatch --array=0-2 0", "throttle 7 0"] == slurm.done


def test_tasks_that_come_later_are_warned_as_early_as_saves_need(paths: RunPaths) -> None:
    """As those of a resumed run are."""
    Path(paths.job).write_text(
        '{"spec": {"command": ["true"], "nodes": "1:4", "mode": "array", "time": "4h"}}'
    )
    Path(paths.checkpoints).mkdir(parents=True, exist_ok=True)
    write_mark(paths, MarkName(7, 1, 0, 1), None, 1, 200.0)
    slurm = ArraySlurm(FOUR)
    scale(paths, 5, print, slurm=slurm)
    (queued,) = (call for call in slurm.done if call.startswith("sbatch"))
    assert queued.endswith(" 260")


def test_what_cannot_be_had_changes_nothing(paths: RunPaths) -> None:
    """Too few nodes, too large an array, or an array that is over: one error, no record."""
    slurm = ArraySlurm(FOUR)
    slurm.most = 3
    with pytest.raises(InputError, match="4 more tasks are needed, and this cluster allows 3"):
        scale(paths, 8, print, slurm=slurm)
    slurm.tasks = []
    with pytest.raises(InputError, match="array 7 has no task left"):
        scale(paths, 2, print, slurm=slurm)
    assert [] == slurm.done
    assert read_state(paths).size is None


def test_only_an_array_has_spares_to_keep(paths: RunPaths) -> None:
    """In a run that is one job they always stand by."""
    Path(paths.job).write_text('{"spec": {"nodes": "1:4"}}')
    with pytest.raises(InputError, match="always stand by"):
        scale(paths, 2, print, keep_spares=True)


def test_an_array_whose_tasks_are_all_suspended_is_suspended(paths: RunPaths) -> None:
    """One that runs has the run go on, or wait for the others."""
    paused = [task._replace(state=JobState.SUSPENDED) for task in FOUR]
    facts, fields = facts_of([*paused, SlurmTask("7", 4, JobState.PENDING)])
    assert (JobState.SUSPENDED, 4) == (facts.state, facts.nodes)
    assert "4 tasks are suspended, 1 task waits" == fields["JobState"]
    assert "suspended by Slurm" == status_of(RunView.of(read_run(paths), facts)).text
    facts, fields = facts_of([FOUR[0], *paused[1:2]])
    assert (JobState.RUNNING, "1 task runs, 1 task is suspended") == (facts.state, fields["JobState"])


def test_an_array_looks_like_one_job(paths: RunPaths) -> None:
    """It runs as long as one task does; the restart counts of tasks say nothing about the run."""
    waiting = SlurmTask("7", 4, JobState.PENDING)
    facts, fields = facts_of([*FOUR[:2], waiting])
    assert (JobState.RUNNING, 0, 2) == (facts.state, facts.restarts, facts.nodes)
    told = {"JobState": "2 tasks run, 1 task waits", "NodeList": "n0,n1", "NumTasks": "3"}
    assert {**told, "JobId": "7", "Reason": "None"} == fields
    assert (JobState.PENDING, "Priority") == facts_of([waiting._replace(reason="Priority")])[0][0:3:2]
    assert JobState.COMPLETING is facts_of([MORE._replace(state=JobState.COMPLETING)])[0].state
    assert "5 tasks run (arrays 7, 9)" == facts_of([*FOUR, MORE])[1]["JobState"]  # scale has added one
    assert ("7", "9") == job_ids(read_run(paths), ArraySlurm([*FOUR, MORE]))


def test_a_run_is_not_resumed_beside_a_further_array(paths: RunPaths) -> None:
    """Its first array may be over before it."""
    slurm = ArraySlurm([MORE], JobState="COMPLETED")
    with pytest.raises(InputError, match="its job 9 is RUNNING"):
        Submitter(slurm, FakeClock()).next_request(paths.root)
    slurm.tasks = []
    assert 1 == Submitter(slurm, FakeClock()).next_request(paths.root).submission


def _shown(task: str, reason: str = "BeginTime", **fields: str) -> dict[str, str]:
    """Return what ``scontrol show job`` says of a task that was requeued once."""
    usual = {"JobId": "99", "ArrayJobId": "7", "Restarts": "1", "EligibleTime": "2026-11-21T10:00:00"}
    return {**usual, "ArrayTaskId": task, "Reason": reason, **fields}


def test_the_tasks_that_wait_for_their_time_are_named_as_scontrol_takes_them() -> None:
    """With the time from which none of them waits, and whether they were requeued, if all were."""
    late = _shown("10", EligibleTime="2026-11-21T10:00:05", Restarts="3")
    others = [_shown("0", "None"), _shown("3-5", "Resources", Restarts="0")]
    assert {
        "JobId": "7_2,7_10",
        "EligibleTime": "2026-11-21T10:00:05",
        "Restarts": "3",
    } == begin_of([*others, late, _shown("2")])
    assert "Restarts" not in begin_of([late, _shown("2", Restarts="0")])
    assert ("7", "0") == itemgetter("JobId", "Restarts")(begin_of([_shown("0-5", Restarts="0")]))
    assert "7" == begin_of([_shown(str(number)) for number in range(20)])["JobId"]
    assert {} == begin_of(others)
    assert {} == begin_of([{"JobId": "7", "Reason": "BeginTime"}])


def test_why_the_tasks_of_an_array_wait_is_known() -> None:
    """The array is held if all its tasks are, and none runs."""
    waiting = [SlurmTask("7", number, JobState.PENDING, "", "JobHeldUser") for number in (0, 1)]
    facts, fields = facts_of(waiting)
    assert (True, "JobHeldUser", "7") == (facts.held, fields["Reason"], fields["JobId"])
    assert not facts_of([waiting[0], waiting[1]._replace(reason="Resources")])[0].held
    facts, fields = facts_of([FOUR[0], waiting[0]])
    assert (False, "JobHeldUser") == (facts.held, fields["Reason"])
