"""The end of a start on a full disk: it is waited for once, not by agents that could write nothing."""

from __future__ import annotations

import errno

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Role
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs.job_start import FULL_PATIENCE_S, Start
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.faulty_store import Fault, FaultyStore, Refuse
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import EPOCH, ROUND, STARTED, FastClock, job, paths, write

__all__ = ["job", "paths"]


class Disk:
    """A plan of faults: each write fails so many times.

    Args:
        number: of the error.
        times: how often; None: always.
    """

    def __init__(self, number: int, times: int | None = None) -> None:
        self._fault = Refuse(number)
        self.left = times

    def __call__(self, operation: str, place: str) -> Fault | None:  # noqa: ARG002 - the protocol's
        """Return the fault of a write, if it has one."""
        if operation != "append" or self.left == 0:
            return None
        self.left = None if self.left is None else self.left - 1
        return self._fault


def finish_on(disk: Disk, paths: RunPaths, job: FakeJob, clock: FastClock) -> tuple[Finish, list[str]]:
    """Return the end of a start that has lost its agents, with its lines for the log."""
    write(paths, STARTED, ROUND)
    said: list[str] = []
    start = Start(paths, EPOCH, "7", 2, local=False, srun_exit_code=137)
    made = Finish(start, RequeueBudgets(), Slurm(job.environ), clock, said.append)
    wall = SystemClock()
    store = FaultyStore(SharedDirStore(paths.root), disk)
    made.log = RunLog(store, wall, "batch", ContentionLock(paths.lock, wall), Role.SCRIPT)
    made.log.is_member = False
    return made, said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_agents_are_not_started_again_on_a_full_disk(paths: RunPaths, job: FakeJob, number: int) -> None:
    """The error comes after a minute, and says how long it was waited for."""
    clock = FastClock()
    made, said = finish_on(Disk(number), paths, job, clock)
    with pytest.raises(StoreError):
        made.run()
    assert FULL_PATIENCE_S <= clock.now < 2 * FULL_PATIENCE_S
    assert 1 == sum("trying again for up to 60 s" in line for line in said), said


def test_agents_are_started_again_once_there_is_room(paths: RunPaths, job: FakeJob) -> None:
    """Within that minute."""
    made, _ = finish_on(Disk(errno.ENOSPC, times=3), paths, job, FastClock())
    assert ExitCode.RELAUNCH == made.run().code


def test_another_fault_of_the_directory_costs_a_note_alone(paths: RunPaths, job: FakeJob) -> None:
    """Agents wait for it by themselves; the log has the note."""
    made, said = finish_on(Disk(errno.EIO), paths, job, FastClock())
    assert ExitCode.RELAUNCH == made.run().code
    assert any("this is not in the run's records" in line for line in said)
