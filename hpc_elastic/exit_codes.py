"""Exit codes of the agent and of ``hpc-elastic finish``; their texts: `hpc_elastic.report.causes_text`."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the agent and of ``hpc-elastic finish``.

    A run that fails for its workers ends with the worker's own exit code (128 + n for signal n), which
    `hpc_elastic.node.setup.journal_entries` records.
    `srun` returns the highest code of its tasks, so the order is the precedence.
    """

    OK = 0
    USAGE = 2
    REQUEUE = 75  # drained; the batch script decides about a requeue (EX_TEMPFAIL)
    FAILED = 76  # the run failed for a reason that is not a worker's exit code
    FENCED = 77  # a newer start of this run exists; this agent stood down
    WEDGED = 78  # workers of this node hang in the kernel and cannot be ended: the node needs care
    UNFIT = 79  # the probe of this node failed: it stays out
    RELAUNCH = 80  # only `finish`: start the step again on the nodes that are left
    REQUEUE_JOB = 81  # only `finish --job-info`: the script is to run scontrol requeue
    HOLD_JOB = 82  # only `finish --job-info`: the script is to run scontrol requeuehold
    HUNG = 83  # workers made no progress, so often that the run was given up
