"""What Slurm says about a job that is about to end."""

from __future__ import annotations

from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client import told
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_standing import JobFacts, job_facts
from hpc_elastic.slurm.client.parse import JobState


def look(slurm: Slurm, job_ref: str) -> JobFacts | None:
    """Return the facts of a job, None if Slurm does not know it.

    A job that its user cancels in the second in which its preemption begins looks as one that was
    ended by preemption. Where Slurm requeues what it preempts, it would have done so.

    Raises:
        SlurmError: Slurm is not there or does not answer.
    """
    fields = slurm.show_job(job_ref)
    if fields is None:
        return None
    job = job_facts(fields)
    is_unclear = job.preempted and job.state is JobState.COMPLETING and job.may_requeue
    if is_unclear and _requeues_preempted(slurm, fields.get("Partition", "")):
        return job._replace(preempted=False)
    return job


def _requeues_preempted(slurm: Slurm, partition: str) -> bool:
    """Tell whether Slurm itself requeues jobs of a partition that it has preempted."""
    try:
        if told.config(slurm.show_config()).get("PreemptType") != "preempt/partition_prio":
            return False
        return "REQUEUE" in slurm.show_partition(partition).get("PreemptMode", "")
    except (SlurmCommandError, SlurmNotFoundError):
        return False
