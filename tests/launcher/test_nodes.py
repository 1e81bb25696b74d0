"""Launches on several nodes, each a process of this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpc_elastic.errors import RendezvousTimeoutError
from hpc_elastic.meet.shared_fs import TooFewError
from tests.launcher.conftest import MakeNodes, wait_for
from tests.launcher.jobs import running, started
from tests.slurm.stand_in import FakeJob


def test_each_node_gets_its_own_workers_values(make_nodes: MakeNodes) -> None:
    """Three nodes, six ranks."""
    nodes = make_nodes("3:3")
    names = ["a", "b", "c"]
    for name in names:
        nodes.start(name, "rank_plus", 100)
    found = [nodes.came_of_it(name)["values"] for name in names]
    assert [{str(rank): 100 + rank for rank in (first, first + 1)} for first in (0, 2, 4)] == found


def test_all_start_again_when_one_fails(make_nodes: MakeNodes) -> None:
    """The restart counts for all."""
    nodes = make_nodes(max_restarts=1)
    for name in "ab":
        nodes.start(name, "fail_first", 3)
    assert {"0": ["0", "4", "1"], "1": ["1", "4", "1"]} == nodes.came_of_it("a")["values"]
    assert {"2": ["2", "4", "1"], "3": ["3", "4", "1"]} == nodes.came_of_it("b")["values"]


def test_all_name_the_same_root_cause(make_nodes: MakeNodes) -> None:
    """Also those where nothing has failed, and at the same time."""
    nodes = make_nodes()
    for name in "ab":
        nodes.start(name, "fail_on", 3, "no luck")
    found = {name: nodes.came_of_it(name) for name in "ab"}
    for one in found.values():
        assert [3, 1, "ValueError: no luck"] == one["failed"]
        assert [3] == one["failures"]
        assert "node      : b\n" in one["text"]
        assert "in fail_on\n" in one["text"]
    assert found["a"]["text"] == found["b"]["text"]


def test_an_exit_code_is_known_everywhere(make_nodes: MakeNodes) -> None:
    """Even if there is no word beside it."""
    nodes = make_nodes(max_restarts=1)
    for name in "ab":
        nodes.start(name, "leave_on", 1, 7)
    assert [[1, 7, ""], [1, 7, ""]] == [nodes.came_of_it(name)["failed"] for name in "ab"]


def test_a_failure_reaches_the_error_file_of_every_launcher(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """A launcher that is `record`ed hands the root cause on to who has started it."""
    nodes = make_nodes()
    for name in "ab":
        file = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / f"{name}.json")}
        nodes.start(name, "fail_on", 3, "no luck", env=file)
    for name in "ab":
        nodes.came_of_it(name)
        assert "ValueError: no luck" in (tmp_path / f"{name}.json").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_launch_in_order(make_nodes: MakeNodes, tmp_path: Path, number: int) -> None:
    """The workers have ended when it is told; the other node is told, too."""
    nodes = make_nodes()
    for name in "ab":
        nodes.start(name, "wait_forever", tmp_path)
    wait_for(lambda: started(tmp_path, 4), "four workers")
    nodes.signal("b", number)
    assert signal.Signals(number).name == nodes.came_of_it("b")["signal"]
    other = nodes.came_of_it("a")
    assert "RendezvousClosedError" == other["error"]
    assert "stopped for" in other["text"]
    assert [] == running(tmp_path)


def test_a_launch_that_is_killed_leaves_no_worker(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """Nor anything else."""
    nodes = make_nodes("1:1")
    nodes.start("a", "wait_forever", tmp_path)
    wait_for(lambda: started(tmp_path, 2), "two workers")
    nodes.signal("a", signal.SIGKILL)
    wait_for(lambda: not running(tmp_path), "the end of the workers")


def test_a_run_of_another_active_job_is_not_taken_over(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """A launch in a later job of Slurm's raises before anything is started; the first one goes on."""
    nodes, job = make_nodes("1:2"), FakeJob(tmp_path / "slurm")
    path = {"PATH": f"{job.bin}:{os.environ['PATH']}", "SLURM_STEP_ID": "0"}
    envs = {
        name: {**path, "SLURM_JOB_ID": number, "SLURM_STEP_NODELIST": name, "SLURMD_NODENAME": name}
        for name, number in (("a", "78"), ("b", "79"))
    }
    nodes.start("a", "wait_for_file", tmp_path / "go", tmp_path / "up", env=envs["a"])
    wait_for((tmp_path / "up").exists, "a worker")
    nodes.start("b", "wait_for_file", tmp_path / "go", tmp_path / "never", env=envs["b"])
    found = nodes.came_of_it("b")
    assert "RunDirError" == found["error"]
    assert f"{nodes.root}: it holds the run of job 78, which is still active (RUNNING)" in found["text"]
    assert 1 == sum(asked.startswith("squeue --all --states=all --jobs=78 ") for asked in job.questions)
    (tmp_path / "go").touch()
    assert {"0": None, "1": None} == nodes.came_of_it("a")["values"]


@pytest.mark.parametrize("option", ["timeout", "join_timeout"])
def test_too_few_nodes_are_told(make_nodes: MakeNodes, option: str) -> None:
    """Torch's name for how long nodes wait for each other is understood, too."""
    nodes = make_nodes(rdzv_configs={option: 1})
    nodes.start("a", "rank_plus", 1)
    found = nodes.came_of_it("a")
    assert TooFewError.__name__ == found["error"]
    assert issubclass(TooFewError, RendezvousTimeoutError)
    assert "1 of 2 nodes joined within 1 s" in found["text"]


@pytest.mark.slow
def test_a_spare_node_has_no_values(make_nodes: MakeNodes, tmp_path: Path) -> None:
    """It stands by while the run goes on, and is not wanted in the end."""
    nodes = make_nodes("1:1")
    nodes.start("a", "wait_for_file", tmp_path / "go", tmp_path / "up")
    wait_for((tmp_path / "up").exists, "a worker")
    nodes.start("b", "wait_for_file", tmp_path / "go", tmp_path / "never")
    log = nodes.root / "logs" / "agents" / "b.log"
    wait_for(lambda: log.exists() and "standing by" in log.read_text(), "the spare node")
    (tmp_path / "go").touch()
    assert {"0": None, "1": None} == nodes.came_of_it("a")["values"]
    assert {} == nodes.came_of_it("b")["values"]
