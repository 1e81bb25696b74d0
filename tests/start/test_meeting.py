"""The start of a run that an agent belongs to, and the node of its batch script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.ids import Env
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import Cause, Decision, Drained, Entry, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.run_log import open_log
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.start import meeting
from hpc_elastic.start.meeting import LaunchOptions, current_epoch, ended_before, rendezvous_of
from tests.slurm.test_lifecycle import state_of

JOB = SlurmEnv("7", "7", 1, 2, True, "n1", 0, ("n1", "n2"), None, False, None)
FIRST = Epoch(0, 0, 0, 0)
BEGAN = EpochStarted(FIRST, "7", ("n1", "n2"))
DRAINED = Drained(FIRST, Cause.PREEMPTION, None, "")


@pytest.mark.parametrize(
    ("entries", "slurm", "submission", "relaunch", "expected"),
    [
        ((), None, None, None, Epoch(0, 0, 0, 0)),
        ((BEGAN,), None, None, None, Epoch(0, 0, 0, 0)),  # by hand: it joins the others
        ((BEGAN, DRAINED), None, None, None, Epoch(0, 0, 1, 0)),
        ((BEGAN,), JOB, "3", None, Epoch(3, 1, 2, 0)),
        ((BEGAN,), JOB, "3", "4", Epoch(3, 1, 2, 4)),
        ((), JOB, None, None, Epoch(0, 1, 2, 0)),  # a user's own script
        ((BEGAN,), JOB, None, "4", Epoch(0, 1, 2, 0)),
        ((BEGAN,), JOB._replace(job_ref="8"), None, None, Epoch(1, 1, 2, 0)),
        (
            (BEGAN, RunEnded(Decision.FAILED, 1, "", None)),
            JOB._replace(job_ref="8"),
            None,
            None,
            (1, 1, 2, 0),
        ),
        ((BEGAN, RunEnded(Decision.DONE, 0, "", None)), JOB._replace(job_ref="8"), None, None, (0, 1, 2, 0)),
        ((), JOB._replace(task=TaskStart("7_1", 1, 0)), "3", "4", Epoch(3, 0, 0, 0)),
        ((), JOB._replace(task=TaskStart("7_1", 1, 0)), None, None, Epoch(0, 0, 0, 0)),
    ],
)
def test_an_agent_belongs_to_one_start_of_the_run(
    entries: tuple[Entry, ...],
    slurm: SlurmEnv | None,
    submission: str | None,
    relaunch: str | None,
    expected: Epoch,
) -> None:
    """Slurm counts those of a job; another job with a user's own script takes up a run that is not done."""
    found = current_epoch(state_of(*entries), slurm, submission, relaunch)
    assert expected == found
    assert isinstance(found, Epoch)


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({Env.SUBMISSION: "0", "SLURM_JOB_NODELIST": "n[3-5]"}, "n3"),
        ({Env.SUBMISSION: "0"}, ""),
        ({"SLURM_JOB_NODELIST": "n[3-5]"}, ""),
        ({}, ""),
    ],
)
def test_the_batch_host_is_the_first_node_of_the_allocation(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], host: str
) -> None:
    """In a job of ours alone: a user's own script has nothing that agents stand in for."""
    for name in (Env.SUBMISSION, "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert host == meeting._batch_host()


def test_an_agent_asks_for_nothing_that_its_user_has_not_asked_for() -> None:
    """What has a default is left out of its command line."""
    usual = vars(AgentSettings())
    assert [] == [name for name in ("watch_node_drain", "tracker_ids") if usual[name]]
    assert (0, 0, ()) == tuple(usual[name] for name in ("sample_gpus", "keep_in_memory", "preload"))
    assert (None, None, "null") == tuple(
        usual[name] for name in ("master_addr", "master_port", "event_log_handler")
    )


class Met:
    """The meeting of an agent, and what it has said."""

    def __init__(self, options: LaunchOptions, slurm: SlurmEnv | None) -> None:
        self.said: list[str] = []
        loop = EventLoop(SystemClock())
        try:
            self.rendezvous = rendezvous_of(options, slurm, loop, self.said.append, lambda: None)
        finally:
            loop.close()
        self.run = self.rendezvous.run


@pytest.fixture
def options(run_paths: RunPaths) -> LaunchOptions:
    """Return the options of an agent of two workers."""
    return LaunchOptions(
        run_paths,
        "run-1",
        MeetingSettings(),
        slots=2,
        command=Command("trainer", ("true",), DefaultLogsSpecs(run_paths.logs, is_of_run=True), ""),
        title="true",
        settings=AgentSettings(max_restarts=0),
        times=AgentTimes(),
        signals=SignalMeanings((), (), ()),
        node="n1",
        addr="10.0.0.1",
    )


@pytest.fixture
def below_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be below the batch script of a submission."""
    monkeypatch.setenv(Env.SUBMISSION, "3")
    monkeypatch.setenv(Env.RELAUNCH, "4")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")


@pytest.mark.usefixtures("below_script")
def test_an_agent_of_a_job_meets_the_other_nodes_of_its_step(options: LaunchOptions) -> None:
    """The first node of the allocation has the batch script; the start is that of the script."""
    met = Met(options, JOB._replace(node_names=("n1", "n2", "n3")))
    assert ("run-1", "7", ("n1", "n2", "n3"), "n1") == met.run.facts
    assert Epoch(3, 1, 2, 4) == met.run.membership.epoch
    assert not met.run.settings.may_outgrow


@pytest.mark.usefixtures("below_script")
def test_a_task_of_an_array_waits_for_nobody_by_name(options: LaunchOptions) -> None:
    """The run may grow by other tasks, and no node has a script for all; its id names the task."""
    task = TaskStart("7_1", 2, 0)
    met = Met(options, JOB._replace(task=task))
    assert ("run-1", "7", (), "") == met.run.facts
    assert met.run.settings.may_outgrow
    assert met.run.membership.facts.member.node_id.endswith(task.tag)


def test_an_agent_by_hand_waits_for_nobody(options: LaunchOptions) -> None:
    """It knows its own place: role, workers and the address for the others."""
    met = Met(options, None)
    assert ("run-1", "", (), "") == met.run.facts
    mine = met.run.membership.facts
    assert ("n1", 2, "trainer", "10.0.0.1") == (*mine.member[1:], mine.addr)
    other = Met(options._replace(master_addr="head"), None).run.membership.facts
    assert "head" == other.addr
    assert other.member.node_id != mine.member.node_id
    assert {f"n1.{os.getpid()}"} == {one.member.node_id.partition("-")[0] for one in (mine, other)}


def test_the_newest_checkpoint_goes_into_the_record_of_a_round(options: LaunchOptions) -> None:
    """With its path and step; a marked one that is gone is told, and an error names the directory."""
    said: list[str] = []
    assert None is meeting._latest_checkpoint(options.paths, said.append)
    place = Path(options.paths.root, "saved")
    place.mkdir()
    write_mark(options.paths, MarkName(7, 1, 0, 1), str(place), 1)
    found = meeting._latest_checkpoint(options.paths, said.append)
    assert (7, str(place)) == (found and found[:2])
    assert [] == said
    os.rename(options.paths.checkpoints, place / "moved")
    Path(options.paths.checkpoints).write_text("")
    with pytest.raises(StoreError, match=f"^{options.paths.checkpoints}: Not a directory"):
        meeting._latest_checkpoint(options.paths, said.append)


def test_what_is_not_needed_any_more_is_removed_between_rounds(run_paths: RunPaths) -> None:
    """Marks of older checkpoints, and logs of rounds beyond those that stay."""
    newest = checkpoints.KEPT + 2
    for step in range(1, newest + 1):
        write_mark(run_paths, MarkName(step, step, 0, 1), None, 1)
    for number in range(1, 6):
        os.makedirs(os.path.join(run_paths.logs, f"round-{number}"), exist_ok=True)
    meeting._tidy(run_paths, 5, 2)
    left = {checkpoints.parse_name(name) for name in os.listdir(run_paths.checkpoints)}
    assert MarkName(newest, newest, 0, 1) in left
    assert MarkName(1, 1, 0, 1) not in left


ANOTHER = JOB._replace(job_ref="8")
FAILED, DONE = (RunEnded(decision, 1, "", None) for decision in (Decision.FAILED, Decision.DONE))


@pytest.mark.parametrize(
    ("entries", "slurm", "is_submitted", "is_over"),
    [
        ((BEGAN,), None, False, False),
        ((BEGAN, FAILED), None, False, True),
        ((BEGAN, FAILED), JOB, False, False),  # this job has begun it: its agents write the messages
        ((BEGAN, FAILED), ANOTHER, False, False),  # a user's own script takes it up
        ((BEGAN, FAILED), ANOTHER, True, True),  # submit alone begins one of its own again
        ((BEGAN, DONE), ANOTHER, False, True),
        ((FAILED,), None, False, True),  # before anybody had begun it
    ],
)
def test_a_run_that_is_over_is_told_to_whom_it_does_not_belong(
    run_paths: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    entries: tuple[Entry, ...],
    slurm: SlurmEnv | None,
    *,
    is_submitted: bool,
    is_over: bool,
) -> None:
    """Before anybody in a job has an agent."""
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    monkeypatch.setenv("PATH", "")  # Slurm has nothing to be asked for
    if is_submitted:
        Path(run_paths.script).write_text("")
    log = open_log(run_paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    found = ended_before(run_paths, slurm)
    assert is_over == (found is not None)
    assert found is None or found.ending == entries[-1]
