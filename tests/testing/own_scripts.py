"""Job scripts of a user's own, submitted as they are: for tests on the fake Slurm and on a real one."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from tests.real_slurm.jobs import PYTHON, USER, Run


class OwnRun(Run):
    """A run of a job script, with the script's own output and files.

    Args:
        cluster: a real one, or one that has its methods.
        directory: of the run.
        job_id: its job.
        place: the directory of the script.
    """

    def __init__(self, cluster: Any, directory: Path, job_id: str, place: Path) -> None:
        super().__init__(cluster, directory, job_id)
        self.place = place

    def output(self) -> str:
        """Return the output of the script."""
        path = self.place / f"own-{self.job_id}.out"
        return path.read_text() if path.exists() else ""

    def said(self) -> list[str]:
        """Return the lines of the script that begin with a word of its own."""
        return [line for line in self.output().splitlines() if line.startswith("own ")]

    def wait_said(self, line: str, times: int = 1) -> None:
        """Wait until the script has said a line so often."""
        self.cluster.wait_for(lambda: self.said().count(line) >= times, 60, f"{line!r} in {self.output()}")

    def go_on(self) -> None:
        """Let a script end that waits for that."""
        (self.place / "go").touch()


def submit_own(
    cluster: Any, body: str, *flags: str, header: str = "", arguments: tuple[str, ...] = ()
) -> OwnRun:
    """Submit a job script and return its run.

    Args:
        cluster: a real one, or one that has its methods.
        body: the script, behind its header.
        flags: of ``submit``.
        header: more options of the script, one a line.
        arguments: of the script.
    """
    place = Path(tempfile.mkdtemp(dir=cluster.shared))
    place.chmod(0o1777)
    options = ["--partition=low", "--output=own-%j.out", "--time=10", *header.split("\n")]
    lines = "".join(f"#SBATCH {option}\n" for option in options if option)
    (place / "job.sbatch").write_text(f"#!/bin/bash\n{lines}\n{body}")
    (place / "job.sbatch").chmod(0o644)
    where = ("--run-dir", str(place / "run"), "--allow-local-run-dir")
    words = [PYTHON, "-m", "hpc_elastic", "submit", *where, *flags, "job.sbatch", *arguments]
    done = cluster.run(USER, words, cwd=place)
    assert done.returncode == 0, done.stderr
    found = re.search(r"as job (\d+)", done.stdout)
    assert found is not None, done.stdout
    return OwnRun(cluster, place / "run", found[1], place)


WAITS = "until [ -e go ]; do sleep 0.1; done\n"
"""Lines of a script that wait until `OwnRun.go_on`, and die of a signal without a trap."""
FIRST_START = 'echo "own start ${SLURM_RESTART_COUNT:-0}"\n'
ONLY_ONCE = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || { echo "own end"; exit 0; }\n'
"""Lines of a script that end it in its second start."""
