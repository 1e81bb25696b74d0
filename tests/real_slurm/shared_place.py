"""A directory that alice and bob share, in which she has runs and he may rename what leads to them."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run

GROUP = f"hpc-elastic-{os.getpid()}"
EPILOG = "#!/bin/sh\\nid > {mark}.$(id -un)\\n"
PLANT = """
mkdir -p {run}/nodes {run}/members {run}/journal {run}/logs/agents
printf '{epilog}' > {run}/nodes/epilog
cp {run}/nodes/epilog {run}/job.sbatch
cp {run}/nodes/epilog {run}/batch.sh
chmod -R 777 {run}
"""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """Have alice and bob in a group."""
    subprocess.run(["groupadd", "--force", GROUP], check=True, capture_output=True)
    for user in (USER, "bob"):
        subprocess.run(["usermod", "-aG", GROUP, user], check=True, capture_output=True)
    yield
    subprocess.run(["groupdel", GROUP], check=True, capture_output=True)


class Project(NamedTuple):
    """A directory that alice and bob share."""

    cluster: Cluster
    path: Path

    def bob(self, script: str) -> None:
        """Have bob run a shell script in the directory; all of it must work."""
        done = self.cluster.run("bob", ["sh", "-ec", script], cwd=self.path)
        assert done.returncode == 0, done.stderr

    @property
    def mark(self) -> Path:
        """What bob's programs write to, with the name of who runs them."""
        return self.cluster.shared / f"pwned-{self.path.name}"

    @property
    def pwned(self) -> list[str]:
        """Who has run them."""
        return [found.suffix[1:] for found in self.cluster.shared.glob(f"{self.mark.name}.*")]

    def plant(self, run: Path | str) -> str:
        """Return a script that makes a directory which looks like a run's and has programs of bob's."""
        return PLANT.format(run=shlex.quote(str(run)), epilog=EPILOG.format(mark=self.mark))

    def submit(self, *words: str, umask: str = "022") -> subprocess.CompletedProcess[str]:
        """Have alice submit a run from here."""
        command = shlex.join([PYTHON, "-m", "hpc_elastic", "submit", "--allow-local-run-dir", *words])
        return self.cluster.run(USER, ["sh", "-c", f"umask {umask}; exec {command}"], cwd=self.path)

    def run(self, *flags: str, worker: str = "sleep 300", umask: str = "002") -> Run:
        """Have alice submit a run from here, which is accepted."""
        done = self.submit("--nodes", "1", "--time", "5", *flags, "--", "sh", "-c", worker, umask=umask)
        found = re.search(r"job (\d+)\nrun directory: (\S+)", done.stdout)
        assert found is not None, done.stderr
        return Run(self.cluster, Path(found[2]), found[1])


def project(cluster: Cluster, owner: str, mode: int, group: str = GROUP) -> Project:
    """Make a directory that alice and bob share."""
    path = cluster.shared / f"proj{os.getpid()}-{next(_numbers)}"
    path.mkdir()
    subprocess.run(["chown", f"{owner}:{group}", path], check=True)
    path.chmod(mode)
    return Project(cluster, path)


def wait_failed(run: Run, timeout: float = 60) -> None:
    """Wait until a job has failed by itself, long before its time limit."""
    run.cluster.wait_state(run.job_id, "FAILED", timeout)
