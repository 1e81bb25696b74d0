"""The stand-in for srun: what it reads, what agents get, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.local.srun import READY_FILE, LocalStep, parse, share_of_gpus, task_environ
from hpc_elastic.testing.waiting import wait_until


@pytest.mark.parametrize(
    "words",
    [
        "--nodes=2 --ntasks=2 --ntasks-per-node=1 --no-kill --wait=0 agent --nodes=9 -N 9",
        "-N 2 -n 2 --label agent --nodes=9 -N 9",
        "--nodes 2 --ntasks 2 -- agent --nodes=9 -N 9",
    ],
)
def test_options_end_at_the_command(words: str) -> None:
    """What follows the first word that is no option belongs to the agent."""
    assert LocalStep(2, ("agent", "--nodes=9", "-N", "9")) == parse(words.split())


@pytest.mark.parametrize("words", ["--nodes=0 agent", "--nodes=many agent", "--nodes=2", ""])
def test_bad_arguments_are_refused(words: str) -> None:
    """A script with a wrong node count or no command ends with an error."""
    with pytest.raises(InputError):
        parse(words.split())


def test_an_agent_finds_its_node_as_under_slurm() -> None:
    """The agent's own reader of Slurm's variables understands them."""
    script = {"SLURM_JOB_ID": "local-5", "SLURM_JOB_NODELIST": "local[1-3]", "HPC_ELASTIC_RELAUNCH": "1"}
    found = SlurmEnv.from_environ(task_environ(script, 1, 2, []))
    assert found is not None
    assert (True, "local2", 1, ("local1", "local2")) == (
        found.in_step,
        found.node_name,
        found.node_index,
        found.node_names,
    )


@pytest.mark.parametrize(
    ("environ", "present", "expected"),
    [
        ({"SLURM_GPUS_ON_NODE": "2"}, 4, ["2", "3"]),
        ({"SLURM_GPUS_ON_NODE": "2"}, 3, []),
        ({}, 4, []),
        ({"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "5,7"}, 8, ["7"]),
    ],
    ids=["split", "too few", "not asked for", "only the visible ones"],
)
def test_gpus_are_split_between_the_nodes(environ: dict[str, str], present: int, expected: list[str]) -> None:
    """The second of two nodes gets the second half."""
    assert expected == share_of_gpus(environ, 1, 2, present)


def srun(ready: Path, nodes: int, code: str, *options: str) -> subprocess.Popen[str]:
    """Start the stand-in as the script does: the script's bash leads the session."""
    argv = [
        sys.executable,
        "-m",
        "hpc_elastic.slurm.local.srun",
        f"--nodes={nodes}",
        *options,
        sys.executable,
        "-c",
        code,
    ]
    environ = {**os.environ, READY_FILE: str(ready)}
    script = ("bash", "-c", 'trap : INT TERM; "$@"; exit $?', "bash", *argv)
    return subprocess.Popen(
        script,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_exit_code_is_the_highest(tmp_path: Path) -> None:
    """As srun's."""
    code = "import os, sys; sys.exit({'0': 75, '1': 3}[os.environ['SLURM_NODEID']])"
    process = srun(tmp_path / "ready", 2, code)
    process.communicate(timeout=120)
    assert 75 == process.returncode


def test_the_epilog_of_a_task_runs_after_each_agent(tmp_path: Path) -> None:
    """In the environment of its agent, also of one that is killed; its exit code does not count."""
    epilog = tmp_path / "epilog"
    epilog.write_text(f"#!/bin/sh\necho $SLURMD_NODENAME > {tmp_path}/after-$SLURM_NODEID\nexit 9\n")
    epilog.chmod(0o755)
    code = "import os; os.environ['SLURM_NODEID'] == '0' and os.kill(os.getpid(), 9)"
    process = srun(tmp_path / "ready", 2, code, f"--task-epilog={epilog}")
    process.communicate(timeout=120)
    assert 137 == process.returncode
    assert ["local1\n", "local2\n"] == [(tmp_path / f"after-{node}").read_text() for node in (0, 1)]


def test_an_agent_that_is_killed_leaves_the_others_alone(tmp_path: Path) -> None:
    """The others go on to their end; the log names the node."""
    code = "import os; os.environ['SLURM_NODEID'] == '0' and os.kill(os.getpid(), 9); print('went on')"
    output, _ = (process := srun(tmp_path / "ready", 2, code)).communicate(timeout=120)
    assert 137 == process.returncode
    assert "went on" in output
    assert "SIGKILL ended the agent of local1" in output


def test_signals_go_to_every_agent(tmp_path: Path) -> None:
    """A warning reaches all nodes once the file says that signals are taken."""
    code = (
        "import os, pathlib, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]);"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['SLURMD_NODENAME']).touch();"
        "print(signal.sigwait([signal.SIGUSR2]).name)"
    )
    ready = tmp_path / "ready"
    process = srun(ready, 2, code)
    wait_until(
        lambda: all((tmp_path / name).exists() for name in ("ready", "local1", "local2")), "agents run"
    )
    os.kill(int(ready.read_text()), signal.SIGUSR2)
    output, _ = process.communicate(timeout=120)
    assert (0, 2) == (process.returncode, output.count("SIGUSR2"))
    assert not ready.exists()


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The code is the shell's."""
    argv = [sys.executable, "-m", "hpc_elastic.slurm.local.srun", "--nodes=1", "/no/such/agent"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert 127 == done.returncode
    assert "/no/such/agent" in done.stderr
