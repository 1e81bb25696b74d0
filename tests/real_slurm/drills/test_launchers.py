"""A launcher as the worker is refused in all its forms, and the line that is told instead is one training."""

from __future__ import annotations

import re
import shlex

import pytest

from hpc_elastic.record.journal import Decision
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import MODES, flags
from tests.real_slurm.jobs import PYTHON, elastic, installed_for_users, submit

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

TRAINING = """
import os, pathlib, sys

ranks = pathlib.Path(os.environ["HPC_ELASTIC_RUN_DIR"], "ranks")
with open(ranks, "a") as file:
    file.write(f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {' '.join(sys.argv[1:])}\\n")
"""
"""Each rank writes a line; a training that runs twice writes each rank twice."""

FORMS = (
    "torchrun --nproc-per-node 2 {script} --lr 0.1",
    "python -m torch.distributed.run --nproc_per_node=2 {script} --lr 0.1",
    "accelerate launch --num_processes 4 {script} --lr 0.1",
    "srun python {script} --lr 0.1",
    "deepspeed --num_gpus 2 {script} --lr 0.1",
    "mpirun -np 4 python {script} --lr 0.1",
    "bash -c 'set -e; torchrun --nproc-per-node 2 {script} --lr 0.1 | tee log'",
    "nice -n 1 torchrun --nproc-per-node 2 {script} --lr 0.1",
)


@pytest.mark.parametrize("mode", MODES)
def test_the_line_that_is_told_is_one_training(cluster: Cluster, tell: Tell, mode: str) -> None:
    """Nothing is queued for any of them; as it is told, each rank runs once, with the script's arguments."""
    script = cluster.shared / "ranks.py"
    script.write_text(TRAINING)
    options = flags(mode, "2", "--partition", "low", "--gpus-per-node", "2")
    for form in FORMS:
        command = shlex.split(form.format(script=script))
        refused = elastic(cluster, "submit", *options, "--", *command)
        assert refused.returncode == 2, refused.stdout
        assert "" == cluster.as_root("squeue", "--noheader")
        line = re.search("fix: write the script in its place: (.+)", refused.stderr)
        assert line is not None, refused.stderr
        own, _, told = line[1].partition("-- ")
        words = shlex.split(told)  # a program that stands before the launcher is kept
        worker = [PYTHON if word == "python" else word for word in words]
        run = submit(cluster, (*options, *shlex.split(own)), worker if PYTHON in worker else [PYTHON, *words])
        ending = run.wait_ending(90).ending
        assert ending is not None
        assert Decision.DONE is ending.decision, run.log()
        ranks = sorted((run.directory / "ranks").read_text().splitlines())
        assert [f"{rank} of 4: --lr 0.1" for rank in range(4)] == ranks
        run.wait_gone()
        tell(mode, form.format(script="train.py"), f"refused; `{line[1].replace(str(script), 'train.py')}`")
