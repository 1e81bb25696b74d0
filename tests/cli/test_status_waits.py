"""What ``status`` says of runs that wait, and of arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    NodeLeft,
    NodeUnfit,
    RanksStopped,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log
from hpc_elastic.report.run_facts import next_steps
from hpc_elastic.report.run_status import RunPhase, RunStatus
from hpc_elastic.slurm.client.job_standing import JobFacts
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.run_files import SlurmAnswer, read_run
from hpc_elastic.slurm.run_jobs.submissions import Submission
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"), sizes="2:2")
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2)), "n1", 1, None)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return the directory of a submitted run."""
    paths = RunPaths(str(tmp_path / "toy-1"))
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": "toy-1", "name": "toy", "user": "me"}))
    submissions.record(paths, Submission(0, "token", "7", "2026-11-21 10:00:00"))
    return paths


def told(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], *entries: Entry, spec: dict[str, object] | None = None
) -> str:
    """Return what status prints of a run with these records."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"nodes": "2", **(spec or {})}}))
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    assert 0 == app.run(["status", paths.root])
    return capfd.readouterr().out


def in_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: str) -> None:
    """Have Slurm say this of the job."""
    job = FakeJob(tmp_path / "slurm")
    job.set(**fields)
    monkeypatch.setenv("PATH", str(job.bin))


def test_a_rank_that_somebody_stopped_is_named(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The others wait for it, and no hang is seen, until it goes on."""
    out = told(paths, capfd, STARTED, ROUND, RanksStopped(1, "n2", (2, 3)))
    assert "  stopped     ranks 2, 3 on n2 are stopped (SIGSTOP): the others wait for them; time does" in out
    assert "ranks 2, 3 on n2 are stopped (SIGSTOP)" in out.splitlines()[-2]  # the last that happened
    out = told(paths, capfd, RanksStopped(1, "n2", ()))
    assert "  stopped" not in out
    assert "no rank on n2 is stopped any more" in out


@pytest.mark.parametrize(
    ("word", "has_script", "last"),
    [
        ("CANCELLED", True, "job 7 was cancelled while it waited in the queue, drained (preemption)"),
        ("CANCELLED", False, "stopped: the job was cancelled"),
        ("PENDING", True, ""),
    ],
)
def test_the_timeline_of_a_job_that_was_cancelled_in_the_queue_says_so(  # noqa: PLR0913
    paths: RunPaths,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    *,
    has_script: bool,
    last: str,
) -> None:
    """The run itself has no record of it."""
    in_slurm(tmp_path, monkeypatch, JobState=word)
    if has_script:
        Path(paths.script).touch()
    by = Asked("SIGTERM", Answer.CONFIRMS, "preempted")
    asked = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", asked=by)
    drained = Drained(EPOCH, Cause.PREEMPTION, None, "", asked=by)
    told(paths, capfd, STARTED, ROUND, asked, drained, Requeued(EPOCH, Cause.PREEMPTION))
    assert 0 == app.run(["timeline", paths.root])
    wanted = f"Slurm says now: {last}" if last else "requeued (preemption)"
    assert wanted == capfd.readouterr().out.splitlines()[-1][21:]


def test_an_array_that_was_cancelled_in_the_queue_waits_for_nothing(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its tasks had left: status and timeline say so, and no node is waited for."""
    in_slurm(tmp_path, monkeypatch, JobState="CANCELLED")
    left = [NodeLeft(EPOCH, f"n{one}.1", f"n{one}", Cause.PREEMPTION, "SIGTERM") for one in (1, 2)]
    asked = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "")
    ended = RoundEnded(1, Cause.PREEMPTION, ("n1",), None, None)
    started, spec = STARTED._replace(expected=()), dict[str, object](mode="array", nodes="2")
    out = told(paths, capfd, started, ROUND, asked, left[1], ended, left[0], spec=spec)
    was_cancelled = "job 7 was cancelled after all its tasks had left"
    assert out.startswith(f"toy-1: {was_cancelled}\n")
    assert "  waits" not in out
    assert 0 == app.run(["timeline", paths.root])
    assert f"Slurm says now: {was_cancelled}" == capfd.readouterr().out.splitlines()[-1][21:]


def test_a_node_that_never_showed_itself_is_waited_for_by_name_and_time(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent may have been killed; the others wait for the join timeout."""
    in_slurm(tmp_path, monkeypatch, JobState="RUNNING")
    Path(paths.members, MemberName("n1.1", EPOCH, Phase.JOINING, 1, 3).text()).touch()
    Path(paths.batch_log.replace("%j", "7")).write_text("srun: error: n2: task 1: Killed\n")
    out = told(paths, capfd, STARTED, spec={"join_timeout": 900.0})
    (line,) = [line for line in out.splitlines() if "waits" in line]
    assert "agents have ended before they came: n2: Killed\n" in out
    assert line.startswith("  waits       for n2 (1 of 2 nodes), since 20")
    assert line.endswith("(join_timeout = 900 s); then the job is given back to Slurm")


def test_a_lost_node_that_is_needed_is_named(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others give it some seconds."""
    in_slurm(tmp_path, monkeypatch, JobState="RUNNING")
    Path(paths.members, MemberName("n1.1", EPOCH, Phase.JOINING, 2, 3).text()).touch()
    out = told(paths, capfd, STARTED, ROUND, RoundEnded(1, Cause.NODE_LOSS, ("n2",), None))
    assert out.startswith("toy-1: between rounds: lost n2\n")
    assert "  waits       for n2 (lost; 1 of 2 nodes left, 2 are needed)" in out


def test_a_held_job_is_released_not_waited_for(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node that becomes free starts it."""
    in_slurm(tmp_path, monkeypatch, JobState="PENDING", Reason="JobHeldUser", JobId="7")
    out = told(paths, capfd)
    assert out.startswith("toy-1: queued, but held: it does not start before it is released")
    assert "  queue       held; to let it go on: scontrol release 7\n" in out
    assert "next: scontrol release 7" in out


@pytest.mark.parametrize("most", [0, 9])
def test_a_job_that_may_not_be_requeued_has_no_requeues_left(
    paths: RunPaths,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    """A limit of 0 is a limit, and not the default."""
    in_slurm(tmp_path, monkeypatch, JobState="RUNNING")
    assert f", 0 of {most} requeues" in told(paths, capfd, STARTED, ROUND, spec={"max_requeues": most})


def test_an_array_counts_the_requeues_of_its_tasks(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_requeues` holds for each task; of unfit nodes those in earlier starts are told, too."""
    in_slurm(tmp_path, monkeypatch, JobState="RUNNING")
    members = (Member("n1.1@7_0-2-0", "n1", 1), Member("n2.1@7_1-1-0", "n2", 1))
    entries = (
        EpochStarted(EPOCH, "7", ()),
        NodeUnfit(EPOCH, "n3", "disk full"),
        RoundFormed(1, EPOCH, members, "n1", 1, None),
    )
    out = told(paths, capfd, *entries, spec={"mode": "array", "max_requeues": 50})
    used = "3 requeues of single tasks (at most 50 for each; the most: task 7_0, 2)"
    assert f"  used        0 of 3 restarts, {used}\n" in out
    assert "  unfit       n3: disk full\n" in out


def test_a_job_that_asks_for_too_much_time_gets_help(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never starts, so nobody is told to look again once it has."""
    in_slurm(tmp_path, monkeypatch, JobState="PENDING", Reason="PartitionTimeLimit", Partition="gpu")
    out = told(paths, capfd)
    assert "next: scontrol update JobId=7 TimeLimit=TIME, with the MaxTime" in out
    assert "once the job has started" not in out


def test_a_held_job_is_expected_at_no_time(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm goes on to show the time that it had for it before; other jobs start then."""
    times = {"JobState": "PENDING", "StartTime": "2026-11-21T10:00:00"}
    in_slurm(tmp_path / "held", monkeypatch, Reason="JobHeldUser", **times)
    assert "expected to start" not in told(paths, capfd)
    in_slurm(tmp_path / "free", monkeypatch, Reason="Resources", **times)
    assert "expected to start 2026-11-21T10:00:00" in told(paths, capfd)


def let_tasks(job: FakeJob, first: str, reason: str) -> None:
    """Have Slurm say this of two tasks of an array, of which the second one waits."""
    two = [
        {"JobState": first, "NodeList": "n1", "ArrayJobId": "7", "ArrayTaskId": "0", "Comment": "token"},
        {"JobState": "PENDING", "Reason": reason, "ArrayJobId": "7", "ArrayTaskId": "1", "Comment": "token"},
    ]
    job.set_tasks(*two)


@pytest.mark.parametrize("first", ["RUNNING", "PENDING"])
def test_an_array_tells_why_its_tasks_wait(
    paths: RunPaths,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
) -> None:
    """All of them, or those that have no node yet while others work."""
    job = FakeJob(tmp_path / "slurm")
    let_tasks(job, first, "Resources")
    monkeypatch.setenv("PATH", f"{job.bin}:{os.environ['PATH']}")
    out = told(paths, capfd, spec={"mode": "array"})
    assert "  queue       waits for nodes to become free\n" in out
    assert ("1 task runs, 1 task waits" if first == "RUNNING" else "2 tasks wait") in out


def test_a_task_that_was_requeued_was_not_submitted_so(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone waits, until a time that Slurm knows."""
    job = FakeJob(tmp_path / "slurm")
    task = {"ArrayJobId": "7", "ArrayTaskId": "1", "Restarts": "1", "EligibleTime": "2026-11-21T10:00:00"}
    job.set(JobState="PENDING", Reason="BeginTime", **task)
    let_tasks(job, "RUNNING", "BeginTime")
    monkeypatch.setenv("PATH", f"{job.bin}:{os.environ['PATH']}")
    queue = (
        "Slurm lets task 7_1 wait until 2026-11-21 10:00:00, as after every requeue; to start it earlier: "
    )
    asks_array: dict[str, object] = {"mode": "array"}
    assert f"  queue       {queue}scontrol update jobid=7_1 " in told(paths, capfd, spec=asks_array)
    job.refuse("show", "slurm_load_jobs error: Socket timed out")  # between the two questions
    out = told(paths, capfd, spec=asks_array)
    assert "  queue       Slurm lets it wait a while; to start it earlier: scontrol update jobid=7 " in out


@pytest.mark.parametrize(("state", "is_told"), [("COMPLETING", True), ("CANCELLED", False)])
def test_only_a_job_that_comes_back_is_to_be_released(
    paths: RunPaths,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    is_told: bool,
) -> None:
    """Its processes end after ``scontrol requeuehold``; Slurm shows the reason of a cancelled one, too."""
    in_slurm(tmp_path, monkeypatch, JobState=state, Reason="job_requeued_in_held_state", NumTasks="2")
    out = told(paths, capfd)
    assert is_told == ("  queue       held; to let it go on: scontrol release 7\n" in out)


def test_a_job_that_is_to_begin_later_waits_for_no_node(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes may be free; it was submitted with ``--begin``."""
    in_slurm(
        tmp_path, monkeypatch, JobState="PENDING", Reason="BeginTime", EligibleTime="2026-11-21T10:00:00"
    )
    out = told(paths, capfd)
    assert out.startswith("toy-1: queued, waits for its time (Slurm's reason: BeginTime)\n")
    assert "until 2026-11-21 10:00:00, as it was submitted (--begin)" in out


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED"])
def test_a_cancelled_run_goes_on_once_its_job_has_left(
    paths: RunPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    state: str,
) -> None:
    """Before that `submit --resume` would refuse it."""
    in_slurm(tmp_path, monkeypatch, JobState=state)
    Path(paths.script).write_text("#!/bin/bash\n")
    out = told(paths, capfd, STARTED, ROUND, RunEnded(Decision.CANCELLED, 130, "by hpc-elastic cancel", None))
    first = "wait until job 7 has left Slurm (some seconds)\n      " if state == "COMPLETING" else ""
    assert f"next: {first}hpc-elastic submit --resume {paths.root}\n" in out


def test_a_held_run_is_released_though_its_processes_still_end(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its job goes back into the queue, where it waits for its user."""
    in_slurm(tmp_path, monkeypatch, JobState="COMPLETING")
    out = told(paths, capfd, STARTED, ROUND, RunEnded(Decision.HELD, 1, "a budget is spent", None))
    assert "when it is mended: scontrol release 7\n" in out


@pytest.mark.parametrize(
    ("steps", "saves"),
    [
        ((4, 4), "the last start has saved nothing newer than step 4"),
        ((4, 4, 4), "the last 2 starts in a row have saved nothing newer than step 4"),
        ((None, None), "nothing is known of its saves, so each start may begin anew: worker.tick(step), "),
        ((4, 5), None),
        ((None,), None),
    ],
)
def test_starts_that_have_saved_nothing_are_told(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], steps: tuple[int | None, ...], saves: str | None
) -> None:
    """While the next one runs, which may do better."""
    entries: list[Entry] = []
    for number, step in enumerate(steps):
        epoch = Epoch(0, 0, number, 0)
        checkpoint = None if step is None else MarkedCheckpoint(step, "")
        begun = ROUND._replace(number=number + 1, epoch=epoch, checkpoint=checkpoint)
        entries += [STARTED._replace(epoch=epoch), begun]
    lines = [line for line in told(paths, capfd, *entries).splitlines() if line.startswith("  saves ")]
    assert bool(lines) is (saves is not None)
    assert saves is None or saves in lines[0]


def test_a_job_without_any_process_is_to_be_requeued(paths: RunPaths) -> None:
    """Where Slurm keeps a running job on a node without agents, only its user can start it again."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"nodes": "2"}}))
    run, silent = read_run(paths), RunStatus(RunPhase.SILENT, "")
    job = JobFacts(JobState.RUNNING, "RUNNING", "None", 0, may_requeue=True, nodes=1, preempted=False)
    assert "to start it again: scontrol requeue 7" == next_steps(run, silent, SlurmAnswer(job, {}))[-1].text
    once = job._replace(may_requeue=False)
    assert run.command_to_go_on == next_steps(run, silent, SlurmAnswer(once, {}))[-1].text
