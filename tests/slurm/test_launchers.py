"""Launchers as the worker's command are refused, with the line to write instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import hpc_elastic
from hpc_elastic.cli import app
from hpc_elastic.cli.run_command import main
from hpc_elastic.cli.run_flags import parser
from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job_spec import JobSpec
from hpc_elastic.slurm.launchers import SWITCHES, launcher_of, line_instead


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 0.1", "--workers-per-node 8 -- train.py --lr 0.1"),
        ("/env/bin/torchrun --nnodes=2 --nproc_per_node=gpu train.py", "--nodes 2 -- train.py"),
        ("torchrun --nnodes 1:4 --max-restarts 5 train.py", "--nodes 1:4 --max-restarts 5 -- train.py"),
        ("torchrun --nnodes $N --rdzv-backend c10d --rdzv-endpoint h:29500 t.py -m", "-- t.py -m"),
        ("torchrun --standalone -m pkg.mod --lr 1", "--module pkg.mod -- --lr 1"),
        ("torchrun --standalone --no-python ./prog", "-- ./prog"),
        ("torchrun", "-- train.py"),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", "--workers-per-node 2 -- train.py"),
        ("python3.11 -X dev -um torch.distributed.launch --use-env train.py", "-- train.py"),
        ("python -u /env/bin/torchrun train.py", "-- train.py"),
        ("env -u X A=1 nohup torchrun train.py", "-- train.py"),
        ("bash -lc 'exec torchrun --nnodes 2 train.py'", "--nodes 2 -- train.py"),
        (
            "accelerate launch --multi_gpu --num_processes 8 --num_machines 2 train.py --num_processes 3",
            "--nodes 2 --workers-per-node 4 -- train.py --num_processes 3",
        ),
        ("accelerate launch -m pkg.mod --x 1", "--module pkg.mod -- --x 1"),
        ("deepspeed --num_nodes=2 --num_gpus=4 train.py -x", "--nodes 2 --workers-per-node 4 -- train.py -x"),
        ("srun --nodes 2 -n 4 python -u train.py -a", "--nodes 2 -- train.py -a"),
        ("srun python -m pkg.mod -a", "--module pkg.mod -- -a"),
        ("srun -N 2 torchrun --nproc-per-node 4 train.py", "--nodes 2 --workers-per-node 4 -- train.py"),
        ("mpirun -np 8 python train.py", "-- train.py"),
        ("mpiexec train.py", "-- train.py"),
        ("hpc-elastic run --nproc-per-node 2 train.py", "--workers-per-node 2 -- train.py"),
        ("python -I -m hpc_elastic run train.py", "-- train.py"),
        ("uv run torchrun train.py -a", "-- uv run python train.py -a"),
        ("apptainer exec --nv i.sif torchrun train.py", "-- apptainer exec --nv i.sif python train.py"),
    ],
)
def test_the_line_to_write_instead(command: str, line: str) -> None:
    """It has the sizes that the launcher was given, the script and its arguments."""
    found = launcher_of(tuple(shlex.split(command)))
    assert found is not None
    assert f"hpc-elastic submit {line}" == line_instead(found, "submit").replace("'", "")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("torchrun --nnodes=2 --nproc-per-node=gpu train.py", "--nnodes 2 --nproc-per-node gpu train.py"),
        ("torchrun --no-python ./prog -a", "--no-python ./prog -a"),
        ("torchrun -m pkg.mod -a", "-m pkg.mod -a"),
    ],
)
def test_the_line_of_run(command: str, line: str) -> None:
    """`hpc-elastic run` has torchrun's own flags."""
    found = launcher_of(tuple(shlex.split(command)))
    assert found is not None
    assert f"hpc-elastic run {line}" == line_instead(found, "run")


@pytest.mark.parametrize(
    "command",
    [
        "train.py torchrun",
        "python train.py --launcher torchrun",
        "python -c torchrun",
        "python -m pkg.torchrun",
        "accelerate env",
        "hpc-elastic status",
        "./my-torchrun train.py",
        "bash launch.sh torchrun",
        "bash -c 'cd data && torchrun train.py'",
        "bash -c 'torchrun \"'",
        "uv run train.py torchrun",
        "env A=1",
        "bash -c",
        "python -m",
    ],
)
def test_what_is_no_launcher(command: str) -> None:
    """A word of a launcher elsewhere in a command says nothing, nor does a script that is not read."""
    assert launcher_of(tuple(shlex.split(command))) is None


def test_the_switches_are_those_of_the_parser() -> None:
    """A flag without a value does not swallow the script."""
    without = {
        flag
        for action in parser()._actions
        for flag in action.option_strings
        if action.nargs == 0 and flag.startswith("--") and "_" not in flag
    }
    assert without == SWITCHES


@pytest.mark.parametrize("command", ["submit", "submit --dry-run", "submit --local 1", "render"])
@pytest.mark.parametrize("worker", ["-- torchrun train.py", "--module torch.distributed.run -- train.py"])
def test_commands_refuse_it(
    command: str,
    worker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing is made before."""
    monkeypatch.chdir(tmp_path)
    assert 2 == app.run([*command.split(), *worker.split()])
    error = capfd.readouterr().err
    assert "torchrun as the worker would be started once per worker" in error
    assert "hpc-elastic submit -- train.py" in error
    assert [] == list(tmp_path.iterdir())


def test_a_job_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names the line of the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text('nodes = 1\ncommand = "torchrun train.py"\n')
    assert 2 == app.run(["render", "job.toml"])
    assert "job.toml:2: torchrun as the worker" in capfd.readouterr().err.replace("error: ", "")


@pytest.mark.parametrize(
    "words",
    [
        ("--no-python", "torchrun", "train.py"),
        ("torchrun", "train.py"),
        ("-m", "torch.distributed.run", "train.py"),
    ],
)
def test_run_refuses_it(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No run directory is made."""
    monkeypatch.chdir(tmp_path)
    assert 2 == main(["--run-dir=run", *words])
    assert "hpc-elastic run train.py" in capfd.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_python_refuses_it() -> None:
    """The line stays a line of the shell, while options elsewhere are named as fields."""
    with pytest.raises(InputError, match="torchrun as the worker") as refused:
        hpc_elastic.submit("torchrun --nnodes 2 train.py", local=1)
    assert refused.value.fix.endswith("hpc-elastic submit --nodes 2 -- train.py")
    with pytest.raises(InputError, match="torchrun as the worker"):
        JobSpec(command=("torchrun", "train.py"))
