"""Agents below a Slurm that is asked why a signal came, played by small programs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    NodeLeft,
    RoundEnded,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log
from tests.node.agents import Agents, MakeAgents, slurm, wait_for
from tests.node.test_array_agents import task
from tests.slurm.stand_in import FakeJob

SAVES = """
import time
from hpc_elastic import worker
step = 0
while not worker.should_stop():
    time.sleep(0.01)
    step += 1
    worker.tick(step)
    if step == 5: open(file + ".runs", "w").close()
while not os.path.exists(os.path.join(place, "go")): time.sleep(0.01)
worker.checkpoint_saved(step, shards=4)
"""


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """Slurm's commands, which know one job."""
    return FakeJob(tmp_path / "slurm")


def start(agents: Agents, job: FakeJob, *flags: str, **env: str) -> None:
    """Start two agents of the job and wait until their workers run."""
    agents.submitted()
    for node in (0, 1):
        environ = {**slurm(f"n{node}", "n[0-1]"), "PATH": job.environ["PATH"], **env}
        agents.start(node, *flags, env=environ)
    runs = Path(agents.paths.logs).glob
    wait_for(lambda: len(list(runs("*.runs"))) == 4, "the workers to run")


def start_tasks(agents: Agents, job: FakeJob) -> None:
    """Start an agent in each of two tasks of an array, and wait until their workers run."""
    agents.submitted("50")
    for number in (0, 1):
        environ = {**task(number), "PATH": job.environ["PATH"]}
        agents.start(number, "--nnodes", "1:2", "--last-call-timeout", "20", env=environ)
    runs = Path(agents.paths.logs).glob
    wait_for(lambda: len(list(runs("*.runs"))) == 4, "the workers to run")


def signal_both(agents: Agents) -> None:
    """Send both agents SIGTERM, as Slurm does."""
    for node in (0, 1):
        agents._agents[node].send_signal(signal.SIGTERM)


def test_the_reason_is_told_to_all(make: MakeAgents, job: FakeJob) -> None:
    """One agent asks; what Slurm says is in the journal, in its words, and is what the start ends for."""
    agents = make(SAVES)
    start(agents, job)
    job.set(JobState="COMPLETING", Reason="TimeLimit")
    signal_both(agents)
    wait_for(lambda: len(agents.entries(DrainExplained)) == 1, "the reason")
    Path(agents.paths.logs, "go").touch()
    assert [ExitCode.REQUEUE] * 2 == [agents.code(0), agents.code(1)]
    assert [Cause.TIME_LIMIT] == [entry.cause for entry in agents.entries(Drained)]
    outputs = agents.output(0) + agents.output(1)
    assert 2 == outputs.count("SIGTERM received (preemption, scancel, the time limit or a failed node;")
    assert 1 == outputs.count("Slurm: the time limit is reached; workers have")


LEAVE = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")


def asked(agents: Agents) -> None:
    """Have the run stopped by its user, and wait until all workers know."""
    open_log(agents.paths, "login").commit(lambda _: LEAVE)
    told = Path(agents.paths.logs).glob
    wait_for(lambda: len(list(told("*.asked"))) == 4, "the workers to be asked to stop")


def left_s(agents: Agents) -> list[float]:
    """Return how long each worker has, as it says last [s]."""
    return [float(path.read_text()) for path in Path(agents.paths.logs).glob("*.left") if path.stat().st_size]


SAYS = SAVES.replace(
    "while not os.path.exists",
    'open(file + ".asked", "w").close()\nwhile not os.path.exists',
).replace(
    '"go")): time.sleep(0.01)',
    '"go")):\n    time.sleep(0.01)\n'
    '    with open(file + ".new", "w") as told: told.write(str(worker.time_left()))\n'
    '    os.replace(file + ".new", file + ".left")',
)


def test_a_signal_after_a_stop_is_explained(make: MakeAgents, job: FakeJob) -> None:
    """No node has asked for that drain: the first one asks Slurm, and workers have what it leaves.

    The agents write the ending down: the batch script may be killed before it can.
    """
    agents = make(SAYS)
    start(agents, job)
    asked(agents)
    job.set(JobState="COMPLETING")
    signal_both(agents)
    wait_for(lambda: len(agents.entries(DrainExplained)) == 1, "the reason")
    (why,) = agents.entries(DrainExplained)
    assert (Cause.CANCEL, "the job was cancelled") == why[1:3]
    assert why.left_s is not None
    limit_s = why.left_s
    wait_for(lambda: len(left_s(agents)) == 4 and max(left_s(agents)) <= limit_s, "the workers to hear of it")
    Path(agents.paths.logs, "go").touch()
    assert [ExitCode.OK] * 2 == [agents.code(0), agents.code(1)]
    assert [Cause.STOP] == [entry.cause for entry in agents.entries(Drained)]
    assert [Decision.STOPPED] == [entry.decision for entry in agents.entries(RunEnded)]


def test_a_stop_of_an_array_that_is_cancelled_is_recorded(make: MakeAgents, job: FakeJob) -> None:
    """Each task asks for itself; the last agent writes the ending down, as the scripts may be killed."""
    agents = make(SAYS)
    start_tasks(agents, job)
    asked(agents)
    job.set(JobState="COMPLETING")
    signal_both(agents)
    wait_for(lambda: len(left_s(agents)) == 4 and max(left_s(agents)) < 60, "the workers to hear of it")
    Path(agents.paths.logs, "go").touch()
    assert [ExitCode.OK] * 2 == [agents.code(0), agents.code(1)]
    assert [Cause.STOP] == [entry.cause for entry in agents.entries(Drained)]
    assert [Decision.STOPPED] == [entry.decision for entry in agents.entries(RunEnded)]


def test_a_second_signal_is_explained_too(make: MakeAgents, job: FakeJob) -> None:
    """A job that is cancelled within the grace of its preemption has no more than Slurm leaves it then."""
    agents = make(SAYS)
    start(agents, job)
    job.set(PreemptTime="2026-11-22T10:00:00", EndTime="2026-11-22T10:10:00")
    signal_both(agents)
    wait_for(lambda: len(agents.entries(DrainExplained)) == 1, "the reason")
    wait_for(lambda: len(left_s(agents)) == 4 and min(left_s(agents)) > 300, "the grace to be known")
    job.set(JobState="COMPLETING", PreemptTime="None")
    signal_both(agents)
    wait_for(lambda: len(agents.entries(DrainExplained)) == 2, "the other reason")
    wait_for(lambda: len(left_s(agents)) == 4 and max(left_s(agents)) < 60, "less time")
    Path(agents.paths.logs, "go").touch()
    assert [ExitCode.REQUEUE] * 2 == [agents.code(0), agents.code(1)]
    assert [Cause.CANCEL] == [entry.cause for entry in agents.entries(Drained)]


def test_a_time_that_was_given_holds(make: MakeAgents, job: FakeJob) -> None:
    """With --stop-timeout the reason is told, and changes nothing of the time."""
    agents = make(SAVES)
    start(agents, job, "--stop-timeout", "1000")
    job.set(JobState="COMPLETING")
    signal_both(agents)
    wait_for(lambda: len(agents.entries(DrainExplained)) == 1, "the reason")
    Path(agents.paths.logs, "go").touch()
    assert [ExitCode.REQUEUE] * 2 == [agents.code(0), agents.code(1)]
    lines = (agents.output(0) + agents.output(1)).splitlines()
    assert ["Slurm: the job was cancelled"] == [
        line.partition("] ")[2] for line in lines if "Slurm: the job was" in line
    ]


def test_what_slurm_says_of_one_task_is_told_to_all(make: MakeAgents, job: FakeJob) -> None:
    """Its scancel is no preemption; how long it has is no matter of the others."""
    agents = make(SAVES)
    start_tasks(agents, job)
    job.set(JobState="COMPLETING")
    agents._agents[1].send_signal(signal.SIGTERM)
    wait_for(lambda: len(agents.entries(DrainExplained)) == 1, "the reason")
    Path(agents.paths.logs, "go").touch()
    assert ExitCode.REQUEUE == agents.code(1)
    (told,) = agents.entries(DrainExplained)
    assert (Cause.CANCEL, "the job was cancelled", None, Answer.CONFIRMS) == told[1:]
    assert ("n1", Cause.CANCEL) == agents.entries(NodeLeft)[0][2:4]
    wait_for(lambda: bool(agents.entries(RoundEnded)), "the end of the round")
    assert (Cause.CANCEL, ("n1",)) == agents.entries(RoundEnded)[0][1:3]


def test_a_run_on_one_machine_asks_no_slurm(make: MakeAgents, job: FakeJob) -> None:
    """What plays Slurm there has no job that the real one could know."""
    agents = make(SAVES)
    start(agents, job, HPC_ELASTIC_LOCAL="1")
    signal_both(agents)
    Path(agents.paths.logs, "go").touch()
    assert [ExitCode.REQUEUE] * 2 == [agents.code(0), agents.code(1)]
    assert not agents.entries(DrainExplained)
    assert "SIGTERM received: workers have 25 s" in agents.output(0)


@pytest.mark.slow
def test_a_drain_begins_by_itself_before_the_limit(make: MakeAgents, job: FakeJob) -> None:
    """Nobody is signalled; all nodes hear how long there is, which is more than a warning leaves."""
    told = "while worker.time_left() is None: time.sleep(0.01)\nleft = worker.time_left()\n"
    agents = make(
        "import signal, time\nfrom hpc_elastic import worker\nopen(file + '.runs', 'w').close()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # it may come before all is written
        f"{told}open(file + '.left', 'w').write(str(left))"
    )
    end = str(int(SystemClock().wall()) + 4)
    start(agents, job, "--warn-timeout", "1", SLURM_JOB_END_TIME=end)
    for node in (0, 1):
        agents.code(node)
    (asked,) = agents.entries(DrainRequested)
    assert Cause.TIME_LIMIT is asked.cause
    assert "the time limit, " in asked.detail
    left = [float(path.read_text()) for path in Path(agents.paths.logs).glob("*.left")]
    assert 4 == len(left)
    assert all(seconds > 10 for seconds in left)
