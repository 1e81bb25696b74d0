"""One run of a training: how it is submitted, and what is known of it while it goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from chaos_lib.processes import Process, Role, of_user
from hpc_elastic.account.spans import History
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, parse_name
from hpc_elastic.record.journal import Record
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.report.run_facts import history_of
from hpc_elastic.slurm.run_jobs.run_files import read_run
from tests.real_slurm.cluster import REPOSITORY, Cluster

USER = "alice"
PYTHON = os.environ.get("HPC_ELASTIC_TEST_PYTHON", sys.executable)
WORKERS_PER_NODE = 2


class Shape(NamedTuple):
    """What is run."""

    example: str
    nodes: str  # N or MIN:MAX
    steps: int
    step_s: float  # length of a step [s]
    save_every: int
    max_restarts: int
    flags: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it in words."""
        more = f" {' '.join(self.flags)}" if self.flags else ""
        return (
            f"{self.example} on {self.nodes} nodes, {self.steps} steps of {self.step_s:g} s, "
            f"{self.max_restarts} restarts{more}"
        )


class Mark(NamedTuple):
    """A checkpoint mark and when it was published by the machine's clock [s since the epoch]."""

    name: MarkName
    at: float


class SubmitError(Exception):
    """The run could not be submitted; the text is what the command said."""


class Training:
    """A submitted run.

    Args:
        cluster: where it runs.
        directory: the run directory.
        job_id: its job.
        shape: what is run.
    """

    def __init__(self, cluster: Cluster, directory: Path, job_id: str, shape: Shape) -> None:
        self.cluster = cluster
        self.directory = directory
        self.job_id = job_id
        self.shape = shape
        self.paths = RunPaths(directory)
        self._marks: dict[MarkName, Mark] = {}

    @classmethod
    def submit(cls, cluster: Cluster, directory: Path, shape: Shape) -> Training:
        """Submit a run.

        Raises:
            SubmitError: it was refused.
        """
        where = ("--run-dir", str(directory), "--allow-local-run-dir", "--cpus-per-task", "1")
        size = ("--nodes", shape.nodes, "--gpus-per-node", str(WORKERS_PER_NODE), "--partition", "low")
        budget = ("--max-restarts", str(shape.max_restarts), "--name", directory.name)
        time = () if "--time" in shape.flags else ("--time", "60m")
        program = [PYTHON, str(_script(directory.parent, shape.example)), *_options(shape, directory)]
        words = ["submit", *where, *size, *budget, *time, *shape.flags, "--", *program]
        done = cluster.run(USER, [PYTHON, "-m", "hpc_elastic", *words], cwd=directory.parent)
        found = re.search(r"job (\d+)", done.stdout)
        if done.returncode != 0 or found is None:
            raise SubmitError(done.stdout + done.stderr)
        return cls(cluster, directory, found[1], shape)

    def go_on(self) -> str:
        """Have a run whose job is over go on, as `status` tells its user to; return what was said.

        Raises:
            SubmitError: `status` does not tell how, or the job was refused.
        """
        said = self._command("status", str(self.directory))
        if f"hpc-elastic submit --resume {self.directory}" not in said:
            raise SubmitError(f"status does not tell how to go on: {said}")
        done = self._command("submit", "--resume", str(self.directory))
        found = re.search(r"job (\d+)", done)
        if found is None:
            raise SubmitError(done)
        self.job_id = found[1]
        return said

    def _command(self, *words: str) -> str:
        done = self.cluster.run(USER, [PYTHON, "-m", "hpc_elastic", *words], cwd=self.directory.parent)
        return str(done.stdout + done.stderr)

    def state(self) -> RunState:
        """Return the state of the run."""
        return read_state(self.paths)

    def records(self) -> list[Record]:
        """Return the journal."""
        return list(read_records(self.paths))

    def history(self) -> History:
        """Return the source of the account of the run, which is over."""
        return history_of(read_run(self.paths), None)

    def processes(self, role: Role | None = None) -> list[Process]:
        """Return the live processes of the user on the nodes, those of one role or all."""
        found = of_user(self.cluster.directory, USER)
        return [process for process in found if role in (None, process.role)]

    def marks(self) -> list[Mark]:
        """Return the marks of checkpoints, oldest first, with those that were seen and are removed by now."""
        for entry in Path(self.paths.checkpoints).iterdir():
            name = parse_name(entry.name)
            if name is not None and name not in self._marks:
                with suppress(FileNotFoundError):  # superseded just now
                    self._marks[name] = Mark(name, entry.stat().st_ctime)
        return sorted(self._marks.values(), key=lambda mark: mark.at)

    def job(self) -> dict[str, str]:
        """Return what Slurm says of the job."""
        return self.cluster.job(self.job_id)

    def result(self) -> dict[str, Any] | None:
        """Return what the training has written at its end; None if nothing."""
        try:
            found: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        except FileNotFoundError:
            return None
        return found


def undisturbed(shape: Shape) -> dict[str, Any]:
    """Return the result of the same training without any fault, on this machine alone."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as root:
        directory = Path(root)
        script = REPOSITORY / "examples" / shape.example / "train.py"
        options = [*_options(shape._replace(step_s=0.0), directory)]
        ranks = str(WORKERS_PER_NODE * int(shape.nodes)) if shape.nodes.isdigit() else "1"
        run = (PYTHON, "-m", "hpc_elastic", "run", "--standalone", "--nproc-per-node", ranks)
        done = subprocess.run(
            [*run, str(script), *options], cwd=root, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"the undisturbed training failed: {done.stdout}{done.stderr}")
        found: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return found


def _script(place: Path, example: str) -> Path:
    """Return the example's program, copied to where every user can read it."""
    script = place / f"{example}.py"
    if not script.exists():
        shutil.copyfile(REPOSITORY / "examples" / example / "train.py", script)
        script.chmod(0o644)
    return script


def _options(shape: Shape, directory: Path) -> Sequence[str]:
    size = ("--steps", str(shape.steps), "--save-every", str(shape.save_every))
    more = ("--replicas", "1") if shape.example == "fsdp_shards" else ()
    return (*size, *more, "--step-time", str(shape.step_s), "--out", str(directory / "result.json"))
