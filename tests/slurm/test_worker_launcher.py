"""Launchers as the worker are found and refused, with the line to write instead."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.worker_launcher import launcher_in, refuse_launcher


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun train.py", "torchrun"),
        ("/opt/env/bin/torchrun train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        ("python3.11 -u -W ignore -m torch.distributed.launch train.py", "torchrun"),
        ("/opt/env/bin/python -u -m torch.distributed.run train.py", "torchrun"),
        ("python /opt/env/bin/torchrun train.py", "torchrun"),
        ("python -um torch.distributed.run train.py", "torchrun"),
        ("accelerate launch train.py", "accelerate launch"),
        ("python -m accelerate.commands.launch train.py", "accelerate launch"),
        ("deepspeed train.py", "deepspeed"),
        ("srun -n 4 python train.py", "srun"),
        ("mpirun -np 4 python train.py", "mpirun"),
        ("mpiexec python train.py", "mpirun"),
        ("tune run lora", "tune run"),
        ("hpc-elastic run train.py", "hpc-elastic run"),
        ("python -m hpc_elastic run train.py", "hpc-elastic"),
        ("env A=1 torchrun train.py", "torchrun"),
        ("nohup env -- torchrun train.py", "torchrun"),
        ("bash -c 'torchrun train.py'", "torchrun"),
        ("bash -lc 'A=1 exec torchrun train.py'", "torchrun"),
        ("bash -l -c 'torchrun train.py'", "torchrun"),
        ("sh -x -c 'torchrun train.py'", "torchrun"),
        ("bash -euo pipefail -c 'torchrun train.py'", "torchrun"),
        ("bash -lc 'source env.sh && torchrun train.py'", "torchrun"),
        ("bash -c 'cd x; A=1 torchrun train.py | tee log'", "torchrun"),
        ("bash -c 'if true; then ! srun python train.py; fi'", "srun"),
        ("bash -c 'true # torchrun train.py'", None),
        ("bash -c 'echo torchrun train.py'", None),
        ("bash train.sh -c 'torchrun train.py'", None),
        ("env -u A -i torchrun train.py", "torchrun"),
        ("nice -n 5 torchrun train.py", "torchrun"),
        ("timeout -s KILL -k 5 1.5h torchrun train.py", "torchrun"),
        ("stdbuf -oL -eL torchrun train.py", "torchrun"),
        ("numactl -N 0 --membind=0 torchrun train.py", "torchrun"),
        ("taskset -c 0-3,8 torchrun train.py", "torchrun"),
        ("taskset 0xff torchrun train.py", "torchrun"),
        ("uv run torchrun train.py", "torchrun"),
        ("uv run --with numpy -- python -m torch.distributed.run train.py", "torchrun"),
        ("conda run --no-capture-output -n srun accelerate launch train.py", "accelerate launch"),
        ("poetry run deepspeed train.py", "deepspeed"),
        ("apptainer exec --nv --bind /a:/b image.sif bash -c 'torchrun train.py'", "torchrun"),
        ("nice timeout 1h env A=1 torchrun train.py", "torchrun"),
        ("uv run train.py --launcher torchrun", None),
        ("conda run -n torchrun python train.py", None),
        ("timeout 5", None),
        ("nice", None),
        ("python -mtorch.distributed.run train.py", "torchrun"),
        ("python -umtorch.distributed.run train.py", "torchrun"),
        ("python -m", None),
        ("python train.py", None),
        ("python train.py torchrun", None),
        ("python -m torch.utils.collect_env", None),
        ("python -c torchrun", None),
        ("python -W torchrun", None),
        ("python -Ic torchrun", None),
        ("python", None),
        ("python -u -m", None),
        ("accelerate env", None),
        ("accelerate", None),
        ("bash train.sh torchrun", None),
        ('bash -c "\'unclosed"', None),
        ("bash -c ''", None),
        ("./torchrun.sh", None),
        ("A=1", None),
    ],
)
def test_a_launcher_is_found_where_a_command_starts_it(command: str, name: str | None) -> None:
    """Also behind an interpreter, in a folder, or in the text of a shell; not among arguments."""
    found = launcher_in(shlex.split(command))
    assert name == (None if found is None else found.name)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_can_be_looked_at(words: list[str]) -> None:
    """Whatever stands in a command."""
    launcher_in(words)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["torchrun", "train.py", "--lr", "a b"], "-- train.py --lr 'a b'"),
        (["torchrun", "--nproc_per_node=4", "t.py"], "--workers-per-node 4 -- t.py"),
        (
            ["torchrun", "--nnodes", "2:3", "--max-restarts", "5", "--standalone", "t.py"],
            "--nodes 2:3 --max-restarts 5 -- t.py",
        ),
        (["torchrun", "--nproc-per-node", "gpu", "--nnodes=$N", "--rdzv-id", "7", "t.py"], "-- t.py"),
        (["torchrun", "-m", "pkg.mod", "--lr", "1"], "--module pkg.mod -- --lr 1"),
        (["torchrun", "--module", "pkg.mod"], "--module pkg.mod --"),
        (["accelerate", "launch", "--multi_gpu", "--num_processes", "4", "t.py", "-x"], "-- t.py -x"),
        (["srun", "-n", "4", "python", "t.py"], "-- t.py"),
        (["bash", "-c", "torchrun t.py --lr 1 2>&1 | tee log"], "-- t.py --lr 1"),
        (["bash", "-c", "torchrun t.py --lr 1 > log 2>&1"], "-- t.py --lr 1"),
        (
            ["uv", "run", "torchrun", "--nproc-per-node", "2", "t.py"],
            "--workers-per-node 2 -- uv run python t.py",
        ),
        (
            ["nice", "apptainer", "exec", "--nv", "x.sif", "torchrun", "t.py"],
            "-- nice apptainer exec --nv x.sif python t.py",
        ),
        (["env", "A=1", "torchrun", "-m", "pkg.mod", "-x"], "-- env A=1 python -m pkg.mod -x"),
        (["env", "A=1", "torchrun", "--no-python", "./run"], "-- env A=1 ./run"),
    ],
)
def test_the_line_to_write_is_told(command: list[str], line: str) -> None:
    """As options of submit, with what is not needed left out."""
    with pytest.raises(InputError) as refused:
        refuse_launcher(command, "command")
    assert refused.value.where == "command"
    assert f"fix: write the script in its place: {line}\n" in str(refused.value)
    assert "every worker would be a whole training of its own" in str(refused.value)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["torchrun", "--nproc_per_node=gpu", "t.py", "-x"], "hpc-elastic run --nproc_per_node=gpu t.py -x"),
        (["deepspeed", "--num_gpus", "2", "t.py"], "hpc-elastic run t.py"),
        (["numactl", "-N", "0", "torchrun", "t.py"], "place: numactl -N 0 hpc-elastic run t.py"),
    ],
)
def test_run_takes_torchruns_own_flags(command: list[str], line: str) -> None:
    """So the line stays as it is."""
    with pytest.raises(InputError, match="fix: write the script in its place: ") as refused:
        refuse_launcher(command, "training_script", is_run=True)
    assert line in str(refused.value)


@pytest.mark.parametrize("command", [["mpirun", "./solver"], ["torchrun"], ["torchrun", "--nproc-per-node"]])
def test_where_no_script_is_seen_none_is_made_up(command: list[str]) -> None:
    """The fix says what to do in words."""
    with pytest.raises(InputError, match="fix: write the training script in its place\n"):
        refuse_launcher(command, "command")


def test_a_script_is_no_launcher() -> None:
    """Nothing is said of it."""
    refuse_launcher(["python", "train.py"], "command")
