"""A disk that is full, broken, slow, or takes parts of writes, at each step of submit, run and finish."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.testing.waiting import wait_until
from tests.slurm.conftest import StandIn
from tests.store.bad_disk import BadDisk, why_no_bad_disk
from tests.store.surroundings import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_no_bad_disk()), reason=why_no_bad_disk()),
]
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
SUBMIT = ("submit", "--nodes=1", "--time=5", "--cpus-per-node=1", "--allow-local-run-dir")
IN_THE_FOREGROUND = ("submit", "--local=1", "--allow-local-run-dir")
AFTER_THE_JOB = 54  # so many changes an undisturbed submission makes; the job is queued before the last five
TRAIN = """
import os, sys
from hpc_elastic import worker
for step in range(1, 6):
    worker.tick(step)
worker.checkpoint_saved(5, sys.argv[1])
with open(sys.argv[1] + "/computed", "w") as file:
    file.write(str(os.getppid()))
open(sys.argv[1] + "/go").read()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[BadDisk]:
    """Return the disk of the directory `disk` beside the working directory."""
    for name in ("library", "disk"):
        (tmp_path / name).mkdir()
    made = BadDisk(tmp_path / "library", tmp_path / "disk")
    yield made
    made.close()


def command(disk: BadDisk, *words: str, cwd: Path) -> tuple[int, str]:
    """Run a command on a bad disk; return its exit code and its words."""
    environ = {**disk.environ, "PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]}
    argv = [sys.executable, "-m", "hpc_elastic", *words]
    done = subprocess.run(
        argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    return done.returncode, done.stdout + done.stderr


def test_a_submission_that_meets_a_bad_disk_says_so_and_can_be_made_again(
    workdir: Path, slurm_dir: StandIn, disk: BadDisk
) -> None:
    """At each of its changes: one error with file and cause; the same command then queues one job in all."""
    where = workdir.parent / "disk"
    for at in count(1, 3):
        number, root = ERRORS[at % 3], where / f"run{at}"
        before = len(slurm_dir.jobs())
        disk.be(since=at, error=number)
        code, said = command(disk, *SUBMIT, f"--run-dir={root}", "--", "python3", "train.py", cwd=workdir)
        was_hit = disk.changes().hit
        disk.be()
        if not was_hit:
            break
        assert (2, 1, False) == (code, said.count("error: "), "Traceback" in said), (at, said)
        assert str(root) in said, (at, said)
        assert os.strerror(number) in said, (at, said)
        is_queued = len(slurm_dir.jobs()) > before
        assert is_queued == ("is queued, but cannot be written down" in said), (at, said)
        again, said = command(disk, *SUBMIT, f"--run-dir={root}", "--", "python3", "train.py", cwd=workdir)
        assert again == 0 or "already holds the run" in said, (at, said)
        assert before + 1 == len(slurm_dir.jobs()), at
    assert at >= AFTER_THE_JOB


@pytest.mark.parametrize("how", [{"most": 3}, {"delay_s": 0.05}], ids=["in parts", "slowly"])
def test_a_disk_that_is_slow_or_takes_a_part_costs_nothing(
    workdir: Path, disk: BadDisk, how: dict[str, float]
) -> None:
    """From the submission to the end of the run."""
    root = workdir.parent / "disk" / "run"
    train = [sys.executable, "-c", TRAIN, str(workdir)]
    (workdir / "go").touch()
    disk.be(since=1, **how)  # type: ignore[arg-type] # numbers of both kinds
    code, said = command(disk, *IN_THE_FOREGROUND, f"--run-dir={root}", "--", *train, cwd=workdir)
    assert (0, False) == (code, "Traceback" in said), said
    assert disk.changes().hit > AFTER_THE_JOB
    disk.be()
    state = read_state(RunPaths(root))
    assert state.ending is not None
    assert (Decision.DONE, 5) == (state.ending.decision, newest_step(RunPaths(root), -1))


class Run:
    """A run in the foreground whose worker has marked a checkpoint, and waits.

    Args:
        workdir: with the output; the run directory is on the disk beside it.
        disk: that disk.
    """

    def __init__(self, workdir: Path, disk: BadDisk) -> None:
        self.paths = RunPaths(workdir.parent / "disk" / "run")
        self._go = workdir / "go"
        os.mkfifo(self._go)
        argv = [sys.executable, "-m", "hpc_elastic", *IN_THE_FOREGROUND, f"--run-dir={self.paths.root}"]
        argv += ["--", sys.executable, "-c", TRAIN, str(workdir)]
        environ = {**disk.environ, "PYTHONPATH": str(REPOSITORY)}
        self._output = workdir / "output"
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(argv, cwd=workdir, env=environ, stdout=file, stderr=file)
        computed = workdir / "computed"
        wait_until(lambda: computed.exists() and computed.read_text() != "", "the training", timeout_s=300)
        self.agent = int(computed.read_text())

    def go_on(self) -> None:
        """Let the worker end."""
        self._go.write_text("")

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and all that was told."""
        code = self.process.wait(timeout=600)
        return code, self._output.read_text()


@pytest.fixture
def run(workdir: Path, disk: BadDisk) -> Iterator[Run]:
    """Return a run on a disk that is still well."""
    made = Run(workdir, disk)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_run_outlives_a_disk_that_is_bad_for_a_while(run: Run, disk: BadDisk, number: int) -> None:
    """As its workers end: the end is recorded once the disk is well, and no record is missing."""
    disk.be(since=1, error=number)
    run.go_on()
    wait_until(lambda: disk.changes().hit > 3, "the disk to be met", timeout_s=300)
    disk.be()
    code, said = run.ended()
    state, records = read_state(run.paths), read_records(run.paths)
    assert (0, False) == (code, "Traceback" in said), said
    assert state.ending is not None
    assert (Decision.DONE, 5) == (state.ending.decision, newest_step(run.paths, -1))
    assert [*range(1, len(records) + 1)] == [record.number for record in records]


def test_an_end_that_a_full_disk_does_not_take_is_told_once(run: Run, disk: BadDisk) -> None:
    """Where the agent was killed, and its log cannot take a word: in the terminal, in a bounded time."""
    disk.be(since=1, error=errno.ENOSPC)
    os.kill(run.agent, signal.SIGKILL)
    code, said = run.ended()
    disk.be()
    told = f"the end of the run could not be written down: {os.strerror(errno.ENOSPC)}: {run.paths.root}"
    assert (ExitCode.FAILED, 1, False) == (code, said.count(told), "Traceback" in said), said
    assert f"to go on from the checkpoint of step 5: hpc-elastic submit --resume {run.paths.root}" in said
    assert (None, 5) == (read_state(run.paths).ending, newest_step(run.paths, -1))
