"""What launchers out there do with the configuration, the command line and the agent of a launch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hpc_elastic.launcher.api as launcher
import hpc_elastic.run as torchrun
from hpc_elastic.agent.server import (
    LocalElasticAgent,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerState,
)
from hpc_elastic.launcher import LaunchConfig, elastic_launch
from hpc_elastic.launcher.adoption import is_changed

NOTHING = (sys.executable, ("-c", ""))


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def one_node(**more: Any) -> LaunchConfig:
    """Return the configuration of one node that meets nobody."""
    fields: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "r"}
    return LaunchConfig(1, 1, 1, max_restarts=0, **{**fields, **more})


@dataclass
class OtherConfig(LaunchConfig):
    """A configuration with more to configure."""

    network_check: bool = False
    log_dir: str | None = None


def test_a_configuration_is_made_of_another_ones_fields() -> None:
    """They are all that it has, and logs go where they would have gone."""
    plain = one_node()
    other = OtherConfig(**plain.__dict__)
    assert plain.logs_specs is other.logs_specs
    assert other.wanted_logs is None
    assert {0: None} == elastic_launch(other, NOTHING[0])(*NOTHING[1])
    assert Path("hpc_elastic_runs").is_dir()


class ShortConfig(LaunchConfig):
    """A configuration that fills in nothing."""

    def __post_init__(self) -> None:
        """Leave all fields as they are."""


def test_a_configuration_may_leave_out_what_ours_fills_in() -> None:
    """No field of it is hidden elsewhere."""
    assert ShortConfig(1, 1, 1).wanted_logs is None


def test_the_file_of_a_store_is_shared_by_runs(tmp_path: Path) -> None:
    """A path with ``store_type=file`` is good for run after run, whether the file is there or not."""
    there = tmp_path / "there"
    there.write_text("what it holds")
    for path in (tmp_path / "not_there", there):
        for run_id in ("first", "second", "second"):
            more = {"rdzv_endpoint": str(path), "rdzv_configs": {"store_type": "file"}, "run_id": run_id}
            assert {0: None} == elastic_launch(one_node(**more), NOTHING[0])(*NOTHING[1])
    line = [
        f"--rdzv-endpoint={there}",
        "--rdzv-conf=store_type=file",
        "--rdzv-backend=c10d",
        "--rdzv-id=third",
    ]
    torchrun.main([*line, "--rdzv-id=third", "--no-python", *NOTHING[:1], *NOTHING[1]])
    assert "what it holds" == there.read_text()
    runs = [path.name for path in sorted((tmp_path / "there.runs").iterdir())]
    assert ["first", "second", "second+2", "third"] == runs


def test_flags_that_somebody_made_up_are_completed() -> None:
    """Who builds the flags of torch by hand knows nothing of ours, nor of newer ones."""
    given = {"nnodes": "1:1", "nproc_per_node": "1", "node_rank": 0, "master_addr": "127.0.0.1"}
    made_up = argparse.Namespace(
        **given,
        rdzv_backend="static",
        rdzv_endpoint="",
        rdzv_id="none",
        rdzv_conf="",
        master_port=29500,
        max_restarts=2,
        role="default",
        standalone=False,
        training_script="train.py",
        training_script_args=["--lr", "1"],
    )
    config, program, args = torchrun.config_from_args(made_up)
    assert (sys.executable, ["-u", "train.py", "--lr", "1"]) == (program, args)
    assert (2, "127.0.0.1:29500", {"rank": 0, "timeout": 900}) == (
        *(config.max_restarts, config.rdzv_endpoint, config.rdzv_configs),
    )


def test_flags_become_those_of_another_program() -> None:
    """Each is taken over as it is, below a subcommand."""
    program = argparse.ArgumentParser()
    command = program.add_subparsers().add_parser("run")
    for action in torchrun.get_args_parser()._actions:
        if action.dest != "help":
            action.dest = {"training_script": "recipe"}.get(action.dest, action.dest)
            command._add_action(action)
    found = program.parse_args(["run", "--nproc_per_node", "2", "recipe.py", "--config", "x"])
    assert ("2", "recipe.py", ["--config", "x"]) == (
        *(found.nproc_per_node, found.recipe, found.training_script_args),
    )


def test_what_a_program_puts_in_place_of_a_launch_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of launchers look at what would be launched."""
    launched: list[tuple[LaunchConfig, object]] = []

    def instead(config: LaunchConfig, entrypoint: object) -> Callable[..., None]:
        launched.append((config, entrypoint))
        return lambda *_: None

    monkeypatch.setattr(torchrun, "elastic_launch", instead, raising=False)
    torchrun.run(torchrun.parse_args(["--nproc-per-node=3", "train.py"]))
    assert [(3, sys.executable)] == [(config.nproc_per_node, program) for config, program in launched]


def one_look(self: SimpleElasticAgent, role: str = "") -> RunResult:
    """Run the workers without restarts, for a role of another name."""
    group = self._worker_group
    self._initialize_workers(group)
    while (result := self._monitor_workers(group)).state == WorkerState.HEALTHY:
        self._pause(0.1)
    result.return_values = dict.fromkeys(result.return_values, f"seen{role and ''}")
    return result


def test_methods_that_a_program_puts_into_our_agent_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extensions of torch change its agent in place, and launch as ever."""
    assert not is_changed(LocalElasticAgent)
    monkeypatch.setattr(SimpleElasticAgent, "_invoke_run", one_look)
    assert is_changed(LocalElasticAgent)
    assert {0: "seen"} == elastic_launch(one_node(), os.getpid)()


class OtherAgent(LocalElasticAgent):
    """Counts its starts."""

    starts = 0

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        OtherAgent.starts += 1
        return super()._start_workers(worker_group)


def test_an_agent_that_a_program_puts_in_place_of_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the backends for which there is another agent, too."""
    monkeypatch.setattr(launcher, "LocalElasticAgent", OtherAgent)
    assert {0: None} == elastic_launch(one_node(), NOTHING[0])(*NOTHING[1])
    assert 1 == OtherAgent.starts


def test_a_method_that_is_no_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be called in place of one."""
    monkeypatch.setattr(LocalElasticAgent, "run", lambda _self: RunResult(WorkerState.SUCCEEDED, {5: "x"}))
    assert {5: "x"} == elastic_launch(one_node(), NOTHING[0])()
    assert is_changed(argparse.Namespace())
    assert is_changed(argparse.Namespace)
