"""Nodes that a run has lost because Slurm was told to take them: they have not failed."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, NodeTaken, Role
from hpc_elastic.record.node_faults import Blamed, node_faults
from hpc_elastic.record.run_log import open_log, read_records
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.nodes import taken_away
from hpc_elastic.slurm.nodes.nodes import one_line
from hpc_elastic.slurm.run_jobs.job_start import Say
from hpc_elastic.store.node_events import Fault


def note_taken(
    paths: RunPaths, epoch: Epoch, job_ref: str, slurm: Slurm, by: tuple[str, Role], say: Say
) -> None:
    """Write into the records which nodes of a start Slurm was told to take.

    Slurm is asked only if nodes were lost. Never raises: what Slurm does not tell is held against the node.

    Args:
        paths: the run.
        epoch: the start of its job, while Slurm still knows its nodes.
        job_ref: the job.
        slurm: Slurm's commands.
        by: who writes, and what kind of process that is.
        say: prints a line.
    """
    try:
        lost = _lost(node_faults(read_records(paths), paths.name), epoch)
        if lost:
            _note_those_taken(paths, lost, job_ref, slurm, by, say)
    except (HpcElasticError, OSError) as error:
        say(f"whether an administrator took the lost nodes is not known: {one_line(error)}")


def _lost(blamed: Iterable[Blamed], epoch: Epoch) -> list[Blamed]:
    """Return the losses of nodes in a start of the job, whatever relaunch."""
    return [one for one in blamed if one.event.fault is Fault.NODE_LOSS and one.epoch.script == epoch.script]


def _note_those_taken(
    paths: RunPaths, lost: Iterable[Blamed], job_ref: str, slurm: Slurm, by: tuple[str, Role], say: Say
) -> None:
    states = slurm.node_states(sorted({one.event.host for one in lost}), job_ref)
    for one in lost:
        state = states.get(one.event.host)
        reason = None if state is None else taken_away(state, one.event.at)
        if reason is not None:
            _write(paths, NodeTaken(one.epoch, one.event.host, reason, one.record), by)
            say(f"nothing is held against {one.event.host}: {reason}")


def _write(paths: RunPaths, entry: NodeTaken, by: tuple[str, Role]) -> None:
    open_log(paths, *by).commit(lambda _state: entry)
