"""Submits the training of the measure `ettr` with submitit, and prints the id of its job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import submitit
import submitit.helpers
from submitit.helpers import DelayedSubmission

NODES = 2


class Training:
    """The training as submitit starts it, which is submitted again when Slurm wants the nodes back.

    Args:
        argv: options of the training.
    """

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv

    def __call__(self) -> None:
        """Train."""
        from bench_lib.ettr.train import main  # noqa: PLC0415 - only on the nodes

        place = submitit.helpers.TorchDistributedEnvironment()
        place.master_addr = "127.0.0.1"  # all nodes are this machine
        place.export(set_cuda_visible_devices=False)
        main(self._argv)

    def checkpoint(self) -> DelayedSubmission:
        """Return what is done after the requeue: the same, from the newest file."""
        return DelayedSubmission(self)


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    Path(folder).mkdir()
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=1000)
    paths = os.environ["PYTHONPATH"]
    executor.update_parameters(
        nodes=NODES,
        tasks_per_node=1,
        cpus_per_task=1,
        timeout_min=60,
        slurm_partition="low",
        slurm_additional_parameters={"requeue": True},
        slurm_setup=[f"export PYTHONPATH={paths} OMP_NUM_THREADS=1"],
    )
    print(executor.submit(Training(words)).job_id)
