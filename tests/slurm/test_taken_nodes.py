"""Nodes that Slurm was told to take are not remembered as failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import NodeTaken
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.end.bad_nodes import run_with_nodes
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.store.node_ledger import read_ledger
from tests.slurm.forms import write_program
from tests.slurm.test_nodes import EPOCH, LOST, ROUND, START, Site, log_of

UP = "BootTime=2001-01-01T00:00:00 SlurmdStartTime=2001-01-01T00:00:00"
SHOWN = f"NodeName=n2 State=IDLE {UP}"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a run on a cluster of four nodes that has lost n2; the job has n1 and n3 still."""
    found = Site(tmp_path)
    found.write(START, ROUND, LOST)
    found.spec(nodes="3")
    found.job.set(Partition="low", NodeList="n[1,3]")
    idle = {"T": "idle", "P": "low*", "f": "(null)", "G": "gpu:2", "statecomplete": "idle", "reason": "none"}
    rows = [{**idle, "N": name, "nodelist": name} for name in ("n1", "n2", "n3", "n4")]
    write_program(found.job.bin / "sinfo", rows)
    return found


def show(site: Site, shown: str) -> None:
    """Have scontrol show that for any node; all else it does as before."""
    known = site.job.bin / "known"
    known.mkdir()
    (site.job.bin / "scontrol").rename(known / "scontrol")
    site.program("scontrol", f'if [ "$2" = node ]; then {shown}; exit; fi; exec "{known}/scontrol" "$@"')


def finish(site: Site) -> list[str]:
    """End the start of the job; return the nodes that are remembered."""
    start = Start(site.paths, EPOCH, "7", nodes=3, local=False, srun_exit_code=0)
    ended = Ended(ExitCode.REQUEUE, 0, RunState())
    run_with_nodes(lambda: ended, log_of(site), start, site.slurm, SystemClock(), site.said.append)
    return [event.host for event in read_ledger(site.ledger).events]


def taken(site: Site) -> list[NodeTaken]:
    """Return what the records tell of nodes that were taken."""
    return [one.entry for one in read_records(site.paths) if isinstance(one.entry, NodeTaken)]


def test_a_node_that_the_job_gave_up_is_not_remembered(site: Site) -> None:
    """It answers, and is in the job no more; the records and a line say so, and the job may have it again."""
    show(site, f"echo {SHOWN}")
    assert [] == finish(site)
    assert [NodeTaken(EPOCH, "n2", "Slurm took it from the job though it was up", 3)] == taken(site)
    assert "nothing is held against n2: Slurm took it from the job though it was up" in site.said
    assert [] == [call for call in site.job.calls if "ExcNodeList" in call]


@pytest.mark.parametrize("state", ["COMPLETING", "PENDING"])
def test_a_node_that_a_job_gives_back_as_it_ends_was_not_taken(site: Site, state: str) -> None:
    """All nodes are given back then, also the one whose agent was lost before."""
    show(site, f"echo {SHOWN}")
    site.job.set(JobState=state, NodeList="n1")
    assert ["n2"] == finish(site)
    assert [] == taken(site)


def test_a_node_that_has_started_anew_has_failed(site: Site) -> None:
    """Its slurmd is younger than the loss."""
    show(site, f"echo {SHOWN.replace('SlurmdStartTime=2001', 'SlurmdStartTime=2037')}")
    assert ["n2"] == finish(site)
    assert [] == taken(site)


@pytest.mark.parametrize("shown", ["exit 1", f"echo {SHOWN} State=DOWN", "echo"])
def test_what_slurm_does_not_tell_is_held_against_the_node(site: Site, shown: str) -> None:
    """An answer that cannot be read for sure is none."""
    show(site, shown)
    assert ["n2"] == finish(site)
    assert [] == taken(site)
