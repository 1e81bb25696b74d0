"""The end of a job that Slurm starts again at once after a requeue (``--requeue=expedite``, Slurm 25.11).

Slurm takes an exit code other than 0 of its batch script for a fault of a node. Where no Epilog has failed
it then holds the job (``REQUEUE_HOLD``). So each end that gives the job to no further start takes its right
to be requeued first. While slurmctld is away that is waited for: it could give the nodes to no other job.

A start that failed by itself might fail again at once: an outage of a file server can be longer than some
starts without a delay. Such a job waits as long as it would without ``--requeue=expedite``.
"""

from __future__ import annotations

from contextlib import suppress

from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import Cause
from hpc_elastic.slurm.client.commands import Slurm, is_unreachable, look
from hpc_elastic.slurm.client.job_standing import Standing, standing
from hpc_elastic.slurm.run_jobs.job_start import Patience, Start

DELAY_S = 120  # before the next start; the default of Slurm's cred_expire
_AT_ONCE = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.REQUEUE, Cause.NODE_LOSS, Cause.NODE_DRAIN)
"""Causes that are no fault of the run."""


def is_expedited(start: Start, slurm: Slurm) -> bool:
    """Tell whether Slurm starts the job again at once; a script of the user's own does not know it.

    Args:
        start: the start that ends.
        slurm: Slurm's commands.
    """
    if start.expedited or start.is_submitted or start.local:
        return start.expedited and not start.local
    try:
        return slurm.is_expedited(start.job_ref)
    except (SlurmCommandError, SlurmNotFoundError):
        return False


def let_end(start: Start, slurm: Slurm, patiently: Patience, code: int, *, patience_s: float) -> int:
    """Have Slurm take the end of the batch script for that of the job, unless the job was given back.

    Args:
        start: the start that ends.
        slurm: Slurm's commands.
        patiently: paces retries.
        code: the exit code of the script.
        patience_s: how long slurmctld may be away [s].

    Returns:
        The exit code that the script is to have: 0 for a job that Slurm itself ends, in which nothing can be
        changed any more. The state that Slurm has given it stays.

    Raises:
        SlurmError: Slurm does not do it.
    """
    if code in (ExitCode.OK, ExitCode.RELAUNCH) or not is_expedited(start, slurm):
        return code

    def once() -> int | SlurmCommandError:
        stands = standing(look(slurm, start.job_ref), start.restarts)
        if stands in (Standing.REQUEUED, Standing.CANCELLED):
            return code
        if stands not in (Standing.RUNNING, Standing.UNKNOWN):
            return ExitCode.OK
        try:
            slurm.update(start.job_ref, "Requeue=0")
        except SlurmCommandError as error:
            if is_unreachable(error):
                raise
            return error
        return code

    done = patiently(once, patience_s, SlurmCommandError)
    if isinstance(done, SlurmCommandError):
        raise done
    return done


def delay(start: Start, slurm: Slurm, cause: Cause, *, is_unfit: bool) -> None:
    """Have a job that is back in the queue wait, where its next start might fail as this one did.

    Args:
        start: the start that ends.
        slurm: Slurm's commands.
        cause: of its end.
        is_unfit: nodes were left because they are unfit; none was lost.
    """
    if (cause in _AT_ONCE and not is_unfit) or not is_expedited(start, slurm):
        return
    with suppress(SlurmCommandError, SlurmNotFoundError):
        slurm.update(start.job_ref, f"StartTime=now+{DELAY_S}")
