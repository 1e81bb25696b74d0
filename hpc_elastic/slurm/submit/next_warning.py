"""How long before its limit the next job of a run is warned, by what its saves and drains have taken.

Slurm takes the warning of a job at its submission only: one that is requeued keeps what it has.
"""

from __future__ import annotations

from dataclasses import replace

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.record.checkpoints import save_times
from hpc_elastic.slurm.client import deadlines
from hpc_elastic.slurm.job import spec_rules
from hpc_elastic.slurm.job.values import number_text
from hpc_elastic.slurm.run_jobs.run_files import drain_times
from hpc_elastic.slurm.submit.request import SubmitRequest

_TAKES_A_LEAD = ('begin_job "$@"', "${3:-}")  # job scripts have one of them; those of older versions do not


def with_measured_lead(wanted: SubmitRequest) -> SubmitRequest:
    """Return the request with the lead that this run's own saves and drains call for.

    It stays as it is where its user has set `checkpoint_lead`, where the time limit is not known, and where
    nothing was measured that needs more than the default.

    Args:
        wanted: a further job of a run.
    """
    spec = wanted.spec
    limit_s = None if "time-min" in spec.sbatch else spec.time_limit_s
    if spec.checkpoint_lead is not None or limit_s is None or not _takes_a_lead(wanted.script):
        return wanted
    default_s = spec_rules.checkpoint_lead_s(spec)
    try:
        saves, drains = save_times(wanted.paths), drain_times(wanted.paths)
    except (OSError, HpcElasticError):
        return wanted
    most_s = spec_rules.MAX_SIGNAL_S - deadlines.WARNING_JITTER_S
    lead_s = min(deadlines.warning_lead_s(saves, drains, default_s, limit_s), most_s)
    return replace(wanted, lead_s=lead_s) if lead_s > default_s else wanted


def _takes_a_lead(script: str) -> bool:
    return any(text in script for text in _TAKES_A_LEAD)


def lead_text(queued: SubmitRequest) -> str:
    """Return what people are told of the warning of a job; nothing if it is as by default."""
    if queued.lead_s is None:
        return ""
    default_s = spec_rules.checkpoint_lead_s(queued.spec)
    return (
        f"workers get {number_text(queued.lead_s)} s to save before the time limit, by what this run has "
        f"needed so far ({number_text(default_s)} s by default; checkpoint_lead sets it)"
    )
