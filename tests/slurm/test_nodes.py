"""Bad nodes are remembered at the end of a start, and left out of the next one and of other jobs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import BATCH
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeUnfit,
    Role,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.record.run_log import RunLog, open_log, read_records
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.bad_nodes import run_with_nodes
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.nodes.nodes import keep_off, look_after, without_suspects
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.slurm.submit import request
from hpc_elastic.slurm.submit.request import SubmitRequest, read_template
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.node_ledger import place_for, read_ledger, remember
from tests.slurm.forms import write_program
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
NAMES = ("n1", "n2", "n3")
START = EpochStarted(EPOCH, "7", NAMES, "n1")
ROUND = RoundFormed(1, EPOCH, tuple(Member(f"{n}.1", n, 2) for n in NAMES), "n1", 1, None)
LOST = RoundEnded(1, Cause.NODE_LOSS, ("n2",), None)


def _given(entry: Entry, _state: RunState) -> Entry:
    return entry


def log_of(site: Site) -> RunLog:
    """Return the journal of the run, as `finish` uses it."""
    return open_log(site.paths, BATCH, Role.SCRIPT)


class Site:
    """A run, its job and a Slurm that knows four nodes."""

    def __init__(self, home: Path, nodes: int = 4) -> None:
        self.paths = RunPaths(home / "runs" / "run")
        prepare_run_dir(self.paths)
        self.job = FakeJob(home / "slurm")
        self.job.set(Partition="low")
        rows = [
            {"N": f"n{number}", "P": "low*", "T": "idle", "f": "(null)", "G": "gpu:2"}
            for number in range(1, nodes + 1)
        ]
        write_program(self.job.bin / "sinfo", rows)
        self.said: list[str] = []
        self.ledger = place_for(self.paths.root)

    def program(self, name: str, text: str) -> None:
        """Make one of Slurm's commands a shell script."""
        path = self.job.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @property
    def slurm(self) -> Slurm:
        """Return Slurm's commands."""
        return Slurm({**self.job.environ, "PATH": f"{self.job.bin}:/usr/bin:/bin"})

    def write(self, *entries: Entry) -> None:
        """Write records of the run."""
        log = open_log(self.paths, "n1")
        for entry in entries:
            log.commit(partial(_given, entry))

    def spec(self, **fields: object) -> None:
        """Keep a job spec with the run."""
        Path(self.paths.job).write_text(json.dumps({"format": 1, "spec": fields}))

    def end(self) -> list[str]:
        """End a start whose job is requeued; return what Slurm was told."""
        blamed = node_faults(read_records(self.paths), self.paths.name)
        requeue = look_after(self.paths, blamed, "7", self.slurm, SystemClock(), self.said.append)
        keep_off(requeue, self.slurm, self.said.append)
        return self.job.calls

    def planned(self, **fields: object) -> SubmitRequest:
        """Return a request before anything is left out."""
        spec = JobSpec(command=("true",), run_dir=str(Path(self.paths.root).with_name("next")), **fields)
        return request.plan(spec, read_template(), now_s=0)

    def wanted(self, **fields: object) -> SubmitRequest:
        """Return a request as it is queued."""
        return self.queued(self.planned(**fields))

    def queued(self, wanted: SubmitRequest) -> SubmitRequest:
        """Return the request without the suspects."""
        return without_suspects(wanted, self.slurm, SystemClock(), self.said.append)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a run of three nodes on a cluster of four."""
    return Site(tmp_path)


def test_nothing_is_asked_of_slurm_while_all_is_well(site: Site) -> None:
    """A run without faults leaves no ledger and costs no question."""
    site.write(START, ROUND)
    assert [] == site.end()
    assert [] == site.job.questions
    assert not Path(site.ledger).exists()


def test_a_lost_node_is_remembered_and_left_out(site: Site) -> None:
    """The requeued job does without it, and a line says so."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3", exclude="n9")
    assert ["scontrol update JobId=7 ExcNodeList=n9,n2"] == site.end()
    assert ["n2"] == [event.host for event in read_ledger(site.ledger).events]
    assert "left out: n2 (vanished in round 1); they come back by hpc-elastic nodes forgive" in site.said[0]


def test_what_is_left_out_already_is_not_told_again(site: Site) -> None:
    """Slurm keeps the list over requeues."""
    site.write(START, NodeUnfit(EPOCH, "n2", "no GPU"))
    site.spec(nodes="3")
    site.job.set(Partition="low", ExcNodeList="n2")
    assert [] == site.end()


def test_a_forgiven_node_is_taken_in_again(site: Site) -> None:
    """What we have left out before is taken from the list, what the user left out stays."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3", exclude="n4")
    site.end()
    forgiven = NodeEvent("n2", Fault.FORGIVEN, SystemClock().wall() + 1, "x")
    remember(site.ledger, [forgiven])
    site.job.set(Partition="low", ExcNodeList="n2,n4")
    assert "scontrol update JobId=7 ExcNodeList=n4" == site.end()[-1]


def test_a_job_of_ones_own_script_keeps_its_list(site: Site) -> None:
    """Without a job spec nobody knows what the user left out, so that nothing is taken from the list."""
    site.write(START, ROUND, LOST)
    site.job.set(Partition="low", ExcNodeList="n4", NumNodes="2")
    assert ["scontrol update JobId=7 ExcNodeList=n4,n2"] == site.end()


def test_a_job_keeps_the_nodes_that_it_needs(tmp_path: Path) -> None:
    """With as many nodes as the run has at least, the bad one is taken all the same, and a line says so."""
    site = Site(tmp_path, nodes=3)
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    assert [] == site.end()
    assert "too few nodes would be left without them (3): n2" in site.said[0]


def test_a_run_may_take_suspects_in(site: Site) -> None:
    """With exclude_suspects = false nodes are remembered and nothing follows."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3", exclude_suspects=False)
    assert [] == site.end()
    assert read_ledger(site.ledger).events


def test_the_ledger_may_be_elsewhere(site: Site, tmp_path: Path) -> None:
    """The job spec names its directory."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3", ledger=str(tmp_path / "ours"))
    site.end()
    assert [["n2"], False] == [
        [event.host for event in read_ledger(str(tmp_path / "ours")).events],
        Path(site.ledger).exists(),
    ]


def test_without_a_ledger_the_run_looks_after_itself(site: Site) -> None:
    """A ledger that is not ours costs a line; what this run has seen counts."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    place = Path(site.ledger)
    place.mkdir(parents=True, mode=0o777)
    place.chmod(0o777)
    assert ["scontrol update JobId=7 ExcNodeList=n2"] == site.end()
    assert "nodes are not remembered beyond this run" in site.said[0]


@pytest.mark.parametrize("command", ["sinfo", "scontrol"])
def test_a_slurm_that_does_not_answer_costs_a_line(site: Site, command: str) -> None:
    """The end of the start goes on."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    site.program(command, "echo no controller >&2; exit 1")
    site.end()
    assert "no controller" in site.said[-1]
    assert ["n2"] == [event.host for event in read_ledger(site.ledger).events]


def test_a_refused_update_costs_a_line(site: Site) -> None:
    """The job is requeued and may get the node again."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    blamed = node_faults(read_records(site.paths), site.paths.name)
    requeue = look_after(site.paths, blamed, "7", site.slurm, SystemClock(), site.said.append)
    site.program("scontrol", "echo Job is no longer pending execution >&2; exit 1")
    keep_off(requeue, site.slurm, site.said.append)
    assert "the job may get its bad nodes again (n2)" in site.said[-1]


@pytest.mark.parametrize(
    ("code", "local", "updates"),
    [(ExitCode.REQUEUE, False, 1), (ExitCode.OK, False, 0), (ExitCode.RELAUNCH, False, 0), (75, True, 0)],
)
def test_only_a_requeued_job_is_changed(site: Site, code: int, local: bool, updates: int) -> None:
    """A job that runs cannot be changed, and one machine has no other nodes."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    start = Start(site.paths, EPOCH, "7", 3, local, 0)
    ended = Ended(code, 0, RunState())
    assert ended == run_with_nodes(
        lambda: ended, log_of(site), start, site.slurm, SystemClock(), site.said.append
    )
    assert updates == len(site.job.calls) == len(site.said)
    assert local != Path(site.ledger).exists()


def test_the_next_jobs_of_a_chain_do_without_a_bad_node(site: Site) -> None:
    """They go on with the run in place of this job, and wait in the queue already."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    for number in (1, 2):
        link = submissions.new_link(0, number, "token", now_s=0.0)
        assert submissions.announce_link(site.paths, link)
        submissions.record_link(site.paths, link._replace(job_id=f"1{number}"))
    start = Start(site.paths, EPOCH, "7", 3, local=False, srun_exit_code=0)
    ended = Ended(ExitCode.REQUEUE, 0, RunState())
    run_with_nodes(lambda: ended, log_of(site), start, site.slurm, SystemClock(), site.said.append)
    assert [f"scontrol update JobId=1{number} ExcNodeList=n2" for number in (1, 2)] == site.job.calls
    assert 1 == len(site.said)


def test_suspects_are_left_out_of_a_new_job(site: Site) -> None:
    """The user's own and the suspects; a line has the reasons and how to take the suspects in."""
    now = SystemClock().wall()
    remember(site.ledger, [NodeEvent("n2", Fault.UNFIT, now, "a", "old", "no GPU")])
    wanted = site.wanted(nodes="2", exclude="n4")
    assert "--exclude=n4,n2" in wanted.sbatch_arguments
    assert ["left out: n2 (unfit: no GPU); --no-exclude-suspects takes them in"] == site.said
    site.queued(site.planned(nodes="2").again(1))  # --resume takes no flags
    assert "left out: n2 (unfit: no GPU); hpc-elastic nodes forgive takes them in" == site.said[-1]
    assert () == site.wanted(nodes="2", exclude_suspects=False).excluded


def test_a_node_that_left_for_its_failures_is_left_out_of_the_next_start_and_of_a_new_job(site: Site) -> None:
    """As one that failed its check."""
    failed = RoundEnded(1, Cause.CRASH, ("n2",), {"message": "CUDA out of memory"})
    unfit = NodeUnfit(EPOCH, "n2", "always on n2", by_failures=True)
    site.write(START, ROUND, failed, ROUND._replace(number=2), failed._replace(number=2), unfit)
    site.spec(nodes="2:3")
    assert ["scontrol update JobId=7 ExcNodeList=n2"] == site.end()
    assert ("n2",) == site.wanted(nodes="2").excluded
    assert "left out: n2 (unfit: always on n2); --no-exclude-suspects takes them in" == site.said[-1]


@pytest.mark.parametrize(
    "fields",
    [{"nodes": "4"}, {"nodes": "2:4"}, {"nodes": "2", "nodelist": "n[1-2]"}, {"partition": "other"}],
    ids=["all", "up-to-all", "named", "elsewhere"],
)
def test_a_new_job_keeps_the_nodes_that_it_wants(site: Site, fields: dict[str, object]) -> None:
    """As many as it can use stay, and those that it asks for by name; of a strange partition none."""
    remember(site.ledger, [NodeEvent("n2", Fault.UNFIT, SystemClock().wall(), "a", "old", "no GPU")])
    assert () == site.wanted(**fields).excluded


@pytest.mark.parametrize("field", ["exclude", "nodelist"])
def test_a_file_of_names_stays_as_it_is(site: Site, field: str) -> None:
    """Slurm reads lists of nodes from files, too: what is in them cannot be added to."""
    remember(site.ledger, [NodeEvent("n2", Fault.UNFIT, SystemClock().wall(), "a", "old", "no GPU")])
    assert () == site.wanted(nodes="2", **{field: "./names"}).excluded
    assert site.said[0].endswith("is no list of nodes: n2")


def test_a_new_job_does_without_a_ledger(site: Site) -> None:
    """One that is not ours is a warning."""
    Path(site.ledger).mkdir(parents=True)
    Path(site.ledger).chmod(0o777)
    assert () == site.wanted(nodes="2").excluded
    assert site.said[0].startswith("warning: ledger ")


def test_where_nodes_are_remembered_is_kept_with_the_run(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job does not have the environment of its submission."""
    monkeypatch.setenv("HPC_ELASTIC_LEDGER", str(tmp_path / "ours"))
    assert str(tmp_path / "ours") == site.wanted(nodes="2").spec.ledger
    monkeypatch.delenv("HPC_ELASTIC_LEDGER")
    assert site.wanted(nodes="2").spec.ledger is None


def test_each_further_job_does_without_a_bad_node(site: Site) -> None:
    """Slurm keeps a job's list over requeues, but one that is submitted in its place begins anew."""
    site.write(START, ROUND, LOST)
    site.spec(nodes="3")
    link = submissions.new_link(0, 1, "token", now_s=0.0)
    assert submissions.announce_link(site.paths, link)
    submissions.record_link(site.paths, link._replace(job_id="11"))
    site.job.set(Partition="low", ExcNodeList="n2")
    start = Start(site.paths, EPOCH, "7", 3, local=False, srun_exit_code=0)
    ended = Ended(ExitCode.REQUEUE, 0, RunState())
    run_with_nodes(lambda: ended, log_of(site), start, site.slurm, SystemClock(), site.said.append)
    assert ["scontrol update JobId=11 ExcNodeList=n2"] == site.job.calls
    task = start._replace(task=TaskStart("7_1", 0, 0), job_ref="7_1")
    ended = ended._replace(next_job="12_0")
    run_with_nodes(lambda: ended, log_of(site), task, site.slurm, SystemClock(), site.said.append)
    assert "scontrol update JobId=12_0 ExcNodeList=n2" == site.job.calls[-1]
