"""The records of a job script of the user's own: its start, and the end of its output after a failure."""

from __future__ import annotations

import os
from typing import Any

from hpc_elastic.multiprocessing.errors import FailureRecord
from hpc_elastic.record.journal import NO_RANK, OWN_SCRIPT, EpochStarted, Member, RoundFormed
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.end.history import is_by_slurm
from hpc_elastic.slurm.end.unwritten import part_of
from hpc_elastic.slurm.run_jobs.job_start import Start, log_end

_STDERR = "-stderr"  # behind the job in the name of its log: that of its errors, where they go elsewhere
_LINES = 20
_BYTES = 4096


def start_records(start: Start, number: int) -> tuple[EpochStarted, RoundFormed]:
    """Return the records of a start, as agents make them: all nodes of the job are in it from the beginning.

    Args:
        start: of the job.
        number: of the round.
    """
    nodes = parse.expand(start.node_list) or ("?",)
    size = len(nodes)
    members = tuple(Member(f"{node}.0", node, 1, OWN_SCRIPT) for node in nodes)
    began = EpochStarted(start.epoch, start.job_ref, nodes, nodes[0], f"{size}:{size}")
    return began, RoundFormed(number, start.epoch, members, "", 0, None)


def failure_of(start: Start, at: float) -> dict[str, Any]:
    """Return the failure of a script with the end of its output, as it is recorded.

    Args:
        start: of the job.
        at: wall time [s].
    """
    node = next(iter(parse.expand(start.node_list)), "")
    tails = {name: _tail(start, name) for name in (f"{start.job_ref}{_STDERR}", start.job_ref)}
    name = next((name for name, tail in tails.items() if tail), start.job_ref)
    log = os.path.abspath(start.paths.batch_log.replace("%j", name))
    code = start.srun_exit_code
    tail = tails.get(name, "")
    return FailureRecord(NO_RANK, 0, node, 0, code, stderr_tail=tail, log=log, timestamp=at).to_json()


def _tail(start: Start, name: str) -> str:
    """Return the last lines of the script itself in a log, empty without any."""
    log = log_end(start.paths, name)
    own = part_of(log, start.restarts, has_run=True) or log
    lines = [line for line in own.splitlines() if line.strip() and not _is_ours(line)]
    return "\n".join(lines[-_LINES:])[-_BYTES:]


def _is_ours(line: str) -> bool:
    return "hpc_elastic finish: " in line or line.startswith("hpc_elastic: ") or is_by_slurm(line)
