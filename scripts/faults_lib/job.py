"""A job whose workers leave stamps, and what a measure waits for."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from chaos_lib.processes import Process, Role, of_user
from chaos_lib.training import PYTHON, USER

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Record
from hpc_elastic.record.run_log import read_records
from tests.real_slurm.cluster import Cluster

WORKER = Path(__file__).with_name("stamps.py")
LIMIT_S = 90.0
POLL_S = 0.002
PER_NODE = 2


class MeasureError(Exception):
    """A job did not do what a measure needs; the text says what it printed."""


class Launcher(Enum):
    """What starts the workers."""

    OURS = "hpc_elastic"
    TORCHRUN = "torchrun"


class Shape(NamedTuple):
    """What is started.

    Attributes:
        nodes: how many nodes the job has.
        least: how many are enough to go on.
        max_restarts: how many failures of workers are forgiven.
        flags: further options of `submit`.
    """

    nodes: int
    least: int
    max_restarts: int = 100
    flags: tuple[str, ...] = ()


class Stamp(NamedTuple):
    """What a worker left: what happened, and when (monotonic) [s]."""

    at: float
    what: str
    rank: int
    world: int


class Job:
    """A running job; a context manager that cancels it and mends the cluster.

    Args:
        cluster: where it runs.
        launcher: what starts the workers.
        shape: what is started.
    """

    def __init__(self, cluster: Cluster, launcher: Launcher, shape: Shape) -> None:
        self.cluster = cluster
        self.launcher = launcher
        self.shape = shape
        number = len(list(cluster.shared.glob("job-*")))
        self.directory = cluster.shared / f"job-{number:03d}"
        self.directory.mkdir()
        self.directory.chmod(0o1777)
        self._stamps = self.directory / "stamps"
        self._stamps.mkdir()
        self._stamps.chmod(0o1777)
        self.paths = RunPaths(self.directory / "run")
        self.job_id = ""

    def __enter__(self) -> Job:  # noqa: PYI034 - typing has no Self in Python 3.10
        if self.launcher is Launcher.OURS:
            self.job_id = self._submit()
        else:
            self.job_id = self._submit_torchrun()
        self.wait_world(0.0, self.shape.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.as_root("scancel", "--hurry", self.job_id)
        self.cluster.restore()

    def _worker(self) -> list[str]:
        script = self.directory / WORKER.name
        shutil.copyfile(WORKER, script)
        script.chmod(0o644)
        return [str(script)]

    def _submit(self) -> str:
        shape = self.shape
        nodes = str(shape.nodes) if shape.least == shape.nodes else f"{shape.least}:{shape.nodes}"
        size = ("--nodes", nodes, "--gpus-per-node", str(PER_NODE), "--cpus-per-task", "1")
        where = ("--run-dir", self.paths.root, "--allow-local-run-dir", "--partition", "low")
        rest = ("--time", "30m", "--max-restarts", str(shape.max_restarts))
        flags = (*size, *where, *rest, "-e", f"FAULT_STAMPS={self._stamps}", *shape.flags)
        argv = [PYTHON, "-m", "hpc_elastic", "submit", *flags, "--", PYTHON, *self._worker()]
        done = self.cluster.run(USER, argv)
        found = re.search(r"job (\d+)", done.stdout)
        if found is None:
            raise MeasureError(f"submit refused: {done.stdout}{done.stderr}")
        return found[1]

    def _submit_torchrun(self) -> str:
        shape = self.shape
        nnodes = str(shape.nodes) if shape.least == shape.nodes else f"{shape.least}:{shape.nodes}"
        words = (
            *(PYTHON, "-m", "torch.distributed.run", "--nnodes", nnodes),
            *("--nproc-per-node", str(PER_NODE), "--max-restarts", str(shape.max_restarts)),
            *("--rdzv-backend", "c10d", "--rdzv-id", self.directory.name),
        )
        worker, size = shlex.join(self._worker()), f"-N {shape.nodes} -n {shape.nodes}"
        step = "srun --kill-on-bad-exit=0 --wait=0 --no-kill --cpu-bind=none --mpi=none"
        script = "\n".join(
            (
                f"export FAULT_STAMPS={shlex.quote(str(self._stamps))} OMP_NUM_THREADS=1",
                'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
                " ".join((step, size, shlex.join(words), '--rdzv-endpoint "$first:29400"', worker)),
            )
        )
        room = (f"--nodes={shape.nodes}", f"--gpus-per-node={PER_NODE}", f"--cpus-per-task={PER_NODE}")
        rest = ("--partition=low", "--time=30", "--no-kill", "--requeue", "--open-mode=append")
        return self.cluster.submit(USER, *room, *rest, wrap=script)

    def stamps(self, after_s: float, what: str) -> list[Stamp]:
        """Return what workers left after a moment, in order."""
        found = []
        for name in os.listdir(self._stamps):
            at, kind, rank, world = name.split("+")
            if float(at) > after_s and kind == what:
                found.append(Stamp(float(at), kind, int(rank), int(world)))
        return sorted(found)

    def wait_world(self, after_s: float, nodes: int, limit_s: float = LIMIT_S) -> float:
        """Wait until all workers of so many nodes have started after a moment; return when the last did."""
        world = nodes * PER_NODE

        def ranks() -> dict[int, float]:
            return {s.rank: s.at for s in self.stamps(after_s, "start") if s.world == world}

        self.wait(lambda: len(ranks()) == world, f"{world} workers to start", limit_s)
        return max(ranks().values())

    def wait_told(self, after_s: float, nodes: int) -> float:
        """Wait until all workers have been told to stop; return when the last was."""
        world = nodes * PER_NODE
        self.wait(lambda: len(self.stamps(after_s, "told")) == world, f"{world} workers to be told")
        return self.stamps(after_s, "told")[-1].at

    def processes(self, role: Role) -> list[Process]:
        """Return its live processes of a role."""
        return [process for process in of_user(self.cluster.directory, USER) if process.role is role]

    def wait_gone(self, processes: Sequence[Process], limit_s: float = LIMIT_S) -> float:
        """Wait until processes have ended; return when the last one was found so (monotonic) [s]."""
        self.wait(lambda: not any(p.is_alive() for p in processes), "processes to end", limit_s)
        return time.monotonic()

    def records(self) -> list[Record]:
        """Return the journal."""
        return list(read_records(self.paths))

    def record_at(self, kind: type, after_s: float) -> float | None:
        """Return when the first record of a kind after a moment was written (monotonic) [s]."""
        offset = time.time() - time.monotonic()
        for record in self.records():
            if isinstance(record.entry, kind) and record.at - offset >= after_s - 0.001:
                return record.at - offset
        return None

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait until a condition holds.

        Raises:
            MeasureError: it did not in time.
        """
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise MeasureError(f"waited {limit_s:g} s for {what}\n{self._printed()}")
            time.sleep(POLL_S)

    def _printed(self) -> str:
        logs = [*self.directory.glob("run/slurm-*.out"), self.cluster.shared / f"{self.job_id}.out"]
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())
