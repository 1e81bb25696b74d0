"""The ways to run a long job that are compared: how each one is submitted."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench_lib.group import GroupError
from bench_lib.launchers import REPOSITORY
from hpc_elastic.testing.fake_slurm import FakeSlurm

TRAIN = Path(__file__).with_name("train.py")
SUBMITTED = Path(__file__).with_name("submitted.py")
NODES = 2
LIMIT_MIN = 60  # the jobs' time limit [min]
NEVER_SPENT = "100000"
PRELOADED = "torch,sklearn.datasets,torch.nn.parallel,torch._dynamo,hpc_elastic.frameworks.torch"

# The agents meet at a port that is new for each start, and each round of workers at a store of its own: else
# a restart may meet the addresses of the round before, and hang.
_LOOP = """export OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
for start in $(seq 1000); do
    port=$((20000 + RANDOM % 20000))
    srun -N {nodes} -n {nodes} --kill-on-bad-exit=1 {launcher} --nnodes {nodes} --nproc-per-node 1 \\
        --max-restarts 100 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$port \\
        --rdzv-id $SLURM_JOB_ID.$start --local-addr 127.0.0.1 {train} && exit 0
    sleep 1
done
"""


class Job(NamedTuple):
    """What is submitted.

    Attributes:
        slurm: the cluster.
        place: an empty directory.
        words: options of the training that are the same for all ways.
        hang_s: how long a rank may be silent [s].
    """

    slurm: FakeSlurm
    place: Path
    words: tuple[str, ...]
    hang_s: float

    def training(self, checkpoints: str) -> list[str]:
        """Return the command line of the training."""
        return [str(TRAIN), *self.words, "--checkpoints", checkpoints]

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the submission."""
        paths = [str(REPOSITORY), str(REPOSITORY / "scripts"), os.environ.get("PYTHONPATH", "")]
        return {**self.slurm.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def asked(self, argv: list[str], pattern: str) -> str:
        """Run a command that submits; return the id of the job.

        Raises:
            GroupError: it was refused.
        """
        done = self.slurm.run(argv, env=self.environ, cwd=self.place, timeout=120)
        found = re.search(pattern, done.stdout)
        if done.returncode != 0 or found is None:
            raise GroupError(f"refused: {done.stdout}{done.stderr}")
        return found[1]


def _ours(job: Job, *flags: str) -> str:
    size = ("--nodes", str(NODES), "--gpus-per-node", "1", "--cpus-per-node", "1", "--partition", "low")
    where = ("--run-dir", str(job.place / "run"), "--allow-local-run-dir", "--time", f"{LIMIT_MIN}m")
    budgets = ("max-restarts", "max-hangs", "max-requeues", "max-node-losses", "max-starts-without-save")
    spent = [word for name in budgets for word in (f"--{name}", NEVER_SPENT)]
    noticed = ("--hang-timeout", f"{job.hang_s:g}s", "--heartbeat-interval", "0.5s", "--lease", "2s")
    limits = (*noticed, "--same-failure", "0", "--no-exclude-suspects")
    argv = [sys.executable, "-m", "hpc_elastic", "submit", *size, *where, *spent, *limits, *flags]
    return job.asked([*argv, "--", sys.executable, *job.training("ours")], r"job (\d+)")


def _ours_preloaded(job: Job) -> str:
    return _ours(job, "--preload", PRELOADED, "--keep-in-memory", "15m")


def _looped(job: Job, launcher: list[str]) -> str:
    script = _LOOP.format(
        nodes=NODES, launcher=shlex.join(launcher), train=shlex.join(job.training("requeue"))
    )
    (job.place / "job.sh").write_text(f"#!/bin/bash\n{script}", encoding="utf-8")
    room = (f"--nodes={NODES}", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1")
    rest = (
        "--partition=low",
        f"--time={LIMIT_MIN}",
        "--signal=TERM@20",
        "--requeue",
        "--open-mode=append",
        f"--output={job.place}/job.out",
    )
    return job.asked(["sbatch", "--parsable", *room, *rest, str(job.place / "job.sh")], r"(\d+)")


def _torchrun(job: Job) -> str:
    return _looped(job, [sys.executable, "-m", "torch.distributed.run"])


def _ft_launcher(job: Job) -> str:
    module = "nvidia_resiliency_ext.fault_tolerance.launcher"
    limits = ("--ft-rank-heartbeat-timeout", f"{job.hang_s:g}", "--ft-initial-rank-heartbeat-timeout", "60")
    return _looped(job, [sys.executable, "-m", module, "--ignore-missing-fault-tol-cfg", *limits])


def _submitit(job: Job) -> str:
    words = job.training("file")[1:]
    return job.asked([sys.executable, str(SUBMITTED), str(job.place / "submitit"), *words], r"(\d+)")


class Way(NamedTuple):
    """One way to run a job.

    Attributes:
        name: of its row.
        submit: submits it; returns the id of the job.
        needs: the module that has to be installed.
    """

    name: str
    submit: Callable[[Job], str]
    needs: str = "torch"

    @property
    def is_there(self) -> bool:
        """Whether it can be measured here."""
        return importlib.util.find_spec(self.needs) is not None


WAYS = (
    Way("hpc_elastic", _ours),
    Way("hpc_elastic --preload", _ours_preloaded),  # with states that outlive a requeue, too
    Way("torchrun", _torchrun),
    Way("ft_launcher", _ft_launcher, "nvidia_resiliency_ext"),
    Way("submitit", _submitit, "submitit"),
)
