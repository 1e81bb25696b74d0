"""A fake Slurm: its commands as programs on PATH, and a controller that starts, signals and requeues.

    from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings

    with FakeSlurm(directory, Settings(nodes=2)) as slurm:
        job = slurm.submit("--nodes=2", wrap="srun -N2 -n2 hostname")
        slurm.wait_state(job, "COMPLETED")

Jobs, requeue, arrays, dependencies, preemption with grace, time limits, warnings, lost and drained nodes
follow recordings of Slurm 22.05. Everything runs as the user who started it, on this machine.

The differences to a real Slurm:

=======================================  ==========================================================
real Slurm 22.05                         the fake
=======================================  ==========================================================
limits and warnings up to 30 s off       exact
grace ends 3-9 s late                    exact
grace, then TERM to agents twice         once
pending array tasks are one record       one record for each task
backfill keeps room for earlier jobs     a job that fits is started
linuxproc: orphans outlive the job       killed with the job
output of tasks passes through srun      written directly; no ``--label``
SUSPEND, QOS, reservations, hetjobs      none
``srun`` and ``salloc`` outside a job    none
users                                    one
memory, licences, features               not counted
``--json``                               none
=======================================  ==========================================================
"""

from __future__ import annotations

from hpc_elastic.testing.fake_slurm.cluster.model import Settings
from hpc_elastic.testing.fake_slurm.handle import ConditionTimeoutError, FakeSlurm, Process

__all__ = ["ConditionTimeoutError", "FakeSlurm", "Process", "Settings"]
