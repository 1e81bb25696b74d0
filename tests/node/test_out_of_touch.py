"""Whole agents whose run directory is gone, and the pure rule they follow then."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.node.decision import Action, AgentFacts, Group, OwnFacts, decide_blind
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_state
from tests.meet.build import E0, after, crash, formed, start
from tests.node.agents import SLEEP, Agents, MakeAgents, gone, slurm, wait_for

RUNNING = after(start(), formed(1))
CRASHED = after(start(), formed(1), crash(1))


@pytest.mark.parametrize(
    ("group", "signalled", "waited", "action"),
    [
        (Group.RUNNING, False, True, Action.WAIT),
        (Group.RUNNING, True, True, Action.WAIT),  # their deadline is kept elsewhere
        (Group.STOPPING, True, True, Action.WAIT),
        (Group.FAILED, False, False, Action.WAIT),
        (Group.FAILED, True, False, Action.STOP_WORKERS),
        (Group.FAILED, False, True, Action.LEAVE),
        (Group.STOPPED, True, False, Action.LEAVE),
        (Group.SUCCEEDED, False, True, Action.LEAVE),
        (Group.SUCCEEDED, False, False, Action.WAIT),
    ],
)
def test_what_is_done_while_nothing_can_be_read(
    group: Group, signalled: bool, waited: bool, action: Action
) -> None:
    """A passing outage costs time only; who is told to leave, or has waited long enough, leaves."""
    facts = AgentFacts(RUNNING, E0, OwnFacts(1, group))
    assert action is decide_blind(facts, signalled=signalled, waited=waited)


def test_workers_of_a_round_that_is_over_end_though_nothing_can_be_read() -> None:
    """That much was known before."""
    facts = AgentFacts(CRASHED, E0, OwnFacts(1, Group.RUNNING))
    assert Action.STOP_WORKERS is decide_blind(facts, signalled=False, waited=False)


def lose_and_fail(agents: Agents, workers: str) -> None:
    """Take the run directory away, then have a worker fail."""
    os.rename(agents.paths.root, f"{agents.paths.root}.gone")
    Path(workers).touch()


def failing(go: Path) -> str:
    """Return workers of which rank 0 fails as soon as a file is there."""
    return (
        f"import time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        f"if os.environ['RANK'] == '0': sys.exit(7)\n{SLEEP}"
    )


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "left alone"])
def test_a_failure_that_cannot_be_recorded(make: MakeAgents, tmp_path: Path, is_told: bool) -> None:
    """It is shown once, and the agent leaves: at once when told to, else after the exit barrier."""
    agents = make(failing(tmp_path / "go"))
    agent = agents.start(0, "--exit-barrier-timeout", "60" if is_told else "0.5", "--stop-timeout", "5")
    workers = agents.wait_workers(1, 2)
    log = Path(agents.paths.agent_log(workers[0]["HPC_ELASTIC_NODE"]))
    lose_and_fail(agents, str(tmp_path / "go"))
    if is_told:
        moved = Path(f"{agents.paths.root}.gone", log.relative_to(agents.paths.root))
        wait_for(lambda: "worker failed" in moved.read_text(), "the failure")
        agent.send_signal(signal.SIGTERM)
    output = agents.output(0)
    assert (128 + 15 if is_told else ExitCode.FAILED) == agents.code(0)
    assert 1 == output.count("worker failed: rank 0")
    assert f"leaving: the run directory {agents.paths.root} does not answer" in output
    assert "the failure of rank 0 could not be recorded" in output
    assert gone(workers)
    assert not os.path.exists(agents.paths.root)


def test_a_run_that_is_gone_is_not_made_again(make: MakeAgents) -> None:
    """Below the batch script of a run an agent finds it or refuses."""
    agents = make("")
    agents.start(0, env=slurm("n1", "n1"))
    assert ExitCode.USAGE == agents.code(0)
    assert f"run directory {agents.paths.root}: it is gone" in agents.output(0)
    assert not os.path.exists(agents.paths.root)


def test_a_run_that_lost_its_identity_alone_goes_on(make: MakeAgents) -> None:
    """The job script in the directory shows as well that the run is there."""
    agents = make("").submitted()
    os.rename(agents.paths.identity, agents.paths.script)
    agents.start(0, env=slurm("n1", "n1"))
    assert 0 == agents.code(0)


def test_a_directory_that_lost_its_run_is_refused(make: MakeAgents) -> None:
    """An empty directory under the old name is no reason to begin anew."""
    agents = make("")
    os.mkdir(agents.paths.root, mode=0o700)
    agents.start(0, env=slurm("n1", "n1"))
    assert ExitCode.USAGE == agents.code(0)
    assert "there is no run.json in it" in agents.output(0)
    assert not os.listdir(agents.paths.root)


def take_by_another_run(root: Path) -> None:
    """Put another run of the same user's in the place of one."""
    other = Path(f"{root}.other")  # whole before it takes the place: agents look at any moment
    for part in ("checkpoints", "journal", "nodes"):
        (other / part).mkdir(parents=True)
    other.chmod(0o700)
    (other / "run.json").write_text('{"format": 1, "run_id": "another"}')
    root.rename(f"{root}.moved")
    other.rename(root)


def open_to_others(root: Path) -> None:
    """Let others write to it."""
    root.chmod(0o777)


@pytest.mark.parametrize(
    ("take", "why", "moved"),
    [
        (take_by_another_run, "it holds the run another, not mine", ".moved"),
        (open_to_others, "others can write to it (mode 777)", ""),
    ],
)
def test_a_directory_that_was_taken_ends_the_run(
    make: MakeAgents, take: Callable[[Path], None], why: str, moved: str
) -> None:
    """The workers end at once, and the run's own records say why, wherever they are."""
    agents = make(SLEEP)
    root = Path(agents.paths.root)
    root.mkdir(mode=0o700)
    Path(agents.paths.identity).write_text('{"format": 1, "run_id": "mine"}')
    agents.start(0, env={**slurm("n1", "n1"), "HPC_ELASTIC_RUN_ID": "mine"})
    workers = agents.wait_workers(1, 2)
    take(root)
    assert ExitCode.FAILED == agents.code(0)
    assert f"leaving: run directory {root}: {why}" in agents.output(0)
    assert gone(workers)
    root.chmod(0o700)
    ending = read_state(RunPaths(f"{root}{moved}")).ending
    assert ending is not None
    assert why in ending.reason
