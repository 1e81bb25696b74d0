"""The files of the run that is simulated: the real code reads log, checkpoints and identity there.

One directory serves all schedules of a process; each begins with it empty. The journal is not in it: that is
the simulated store.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.slurm.run_jobs.submissions import Submission, announce, new_link, record, record_link

RUN_ID = "simulated"
_MEMORY = "/dev/shm"


class Place:
    """The run directory of a schedule, empty at first.

    Attributes:
        newest_step: that of the checkpoints.
    """

    def __init__(self) -> None:
        self.paths = _paths(os.getpid())
        self.ledger = os.path.join(os.path.dirname(self.paths.root), "ledger")
        self.newest_step = BEGINNING
        self.clear()

    def clear(self) -> None:
        """Take all away that a schedule has left."""
        for name in os.listdir(self.paths.root):
            if name.endswith(".out") or name == os.path.basename(self.paths.site):
                os.unlink(os.path.join(self.paths.root, name))
        for directory in (self.paths.checkpoints, self.paths.submissions, self.ledger):
            for name in os.listdir(directory):
                os.unlink(os.path.join(directory, name))

    def describe(self, nodes: str) -> None:
        """Store the job spec, as far as it matters here."""
        with open(self.paths.job, "w") as file:
            json.dump({"format": 1, "spec": {"nodes": nodes}}, file)

    def describe_chain(self, jobs: Sequence[str]) -> None:
        """Store the ids of the jobs of a chain."""
        announce(self.paths, 0, "token", now_s=0.0)
        record(self.paths, Submission(0, "token", jobs[0]))
        for number, job_ref in enumerate(jobs[1:], start=1):
            record_link(self.paths, new_link(0, number, "token", now_s=0.0)._replace(job_id=job_ref))

    def write(self, job_ref: str, line: str) -> None:
        """Add a line to the batch log of a job."""
        with open(self._log(job_ref), "a") as file:
            file.write(f"{line}\n")

    def lose_log(self, job_ref: str) -> None:
        """Take the batch log of a job away."""
        if os.path.exists(self._log(job_ref)):
            os.unlink(self._log(job_ref))

    def _log(self, job_ref: str) -> str:
        return self.paths.batch_log.replace("%j", job_ref)

    def save(self, step: int) -> None:
        """Mark a checkpoint of one rank as durable."""
        write_mark(self.paths, MarkName(step, 1, 0, 1), None, 1)
        self.newest_step = max(self.newest_step, step)


@cache
def _paths(_process: int) -> RunPaths:
    above = tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    atexit.register(shutil.rmtree, above, ignore_errors=True)
    paths = RunPaths(os.path.join(above, "run"))
    for directory in (*paths.directories(), os.path.join(above, "ledger")):
        os.makedirs(directory, mode=0o700)
    os.chmod(paths.root, 0o700)
    with open(paths.identity, "w") as file:
        file.write(f'{{"format": 1, "run_id": "{RUN_ID}"}}')
    return paths
