"""What the drills' workers do, and what their runs tell about it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import NamedTuple

from hpc_elastic.record.checkpoints import newest_step
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, Run, submit
from tests.real_slurm.test_array import QUICK, wait_size

MODES = ("step", "array")

SAVER = """
import json, os, sys, time
from hpc_elastic import worker

save_s, enough_s = float(sys.argv[1]), 1.0
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
directory = worker.run_dir()
saved = worker.latest_checkpoint()
step = saved.step if saved else 0
while True:
    time.sleep(0.02)
    step += 1
    worker.tick(step)
    if worker.should_stop():
        with open(os.path.join(directory, f"told.{rank}.{step}"), "a", buffering=1) as told:
            with worker.critical("saving"):
                until = time.monotonic() + save_s
                while (now := time.monotonic()) < until:
                    left_s = worker.time_left()
                    told.write(json.dumps([now, left_s]) + "\\n")
                    if left_s is not None and left_s < enough_s:
                        break  # it keeps what it has: the time that it was told is used up
                    time.sleep(0.05)
                worker.checkpoint_saved(step, shards=world)
        break
    if step % 10 == 0:
        open(os.path.join(directory, f"at.{rank}"), "w").write(str(step))
"""
"""Ranks that save as long as they are told that they may; each notes what it was told, and when."""

SMALL = ("--gpus-per-node", "1", "--time", "10m")


class Left(NamedTuple):
    """What a rank was told of its time.

    Attributes:
        at: when it asked, by this machine's monotonic clock [s].
        left_s: how long it had from then on [s].
    """

    at: float
    left_s: float

    @property
    def until(self) -> float:
        """Until when it had time [s]."""
        return self.at + self.left_s


def flags(mode: str, nodes: str, *more: str) -> tuple[str, ...]:
    """Return the options of a run of small nodes in a mode; `more` may give what is given already."""
    array = (*QUICK, "--mode", "array") if mode == "array" else ()
    return (*SMALL, *array, "--nodes", nodes, *more)


def saving(cluster: Cluster, options: tuple[str, ...], save_s: float, size: int = 2) -> Run:
    """Submit a run whose ranks save for so long [s], and wait until a round of so many nodes works."""
    run = submit(cluster, options, [PYTHON, "-c", SAVER, str(save_s)])
    wait_size(run, size)
    wait_steps(run, size, 10)
    return run


def wait_steps(run: Run, ranks: int, step: int) -> None:
    """Wait until all ranks have told of at least this step."""
    files = [run.directory / f"at.{rank}" for rank in range(ranks)]

    def reached(path: Path) -> bool:
        return path.exists() and int(path.read_text() or "0") >= step

    run.cluster.wait_for(lambda: all(map(reached, files)), 60, f"step {step} of all ranks")


def told(run: Run) -> dict[str, list[Left]]:
    """Return what each rank was told of its time in each save; by the file's name."""
    return {
        path.name: [Left(*json.loads(line)) for line in path.read_text().splitlines()]
        for path in sorted(run.directory.glob("told.*"))
    }


def grown_s(asked: list[Left]) -> float:
    """Return by how much a promise was ever made longer [s]."""
    pairs = itertools.pairwise(asked)
    return max((later.until - earlier.until for earlier, later in pairs), default=0.0)


def saved_step(run: Run) -> int:
    """Return the step of the newest whole checkpoint; -1 if there is none."""
    return newest_step(run.paths, -1)


def agents_said(run: Run) -> str:
    """Return what all agents of a run have logged."""
    return "".join(path.read_text() for path in sorted(Path(run.paths.agent_logs).iterdir()))
