"""How many nodes of a run a partition ever holds, and what is said about it before anything changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted, Member, RoundFormed, SizeWanted
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.slurm.client.answers import ListedNode
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.operate.scale import room_of, scale
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.request import plan, read_template
from tests.slurm.array_stand_in import ArraySlurm

NODES = [
    ListedNode("n1", "idle", frozenset({"a100"}), 8),
    ListedNode("n2", "mixed", frozenset({"a100"}), 8),
    ListedNode("n3", "down*", frozenset({"h100"}), 4),
]
OPEN = {"TotalCPUs": "48", "MaxNodes": "UNLIMITED", "OverSubscribe": "NO"}


@pytest.mark.parametrize(
    ("spec", "settings", "tasks", "expected"),
    [
        ({"exclusive": True}, OPEN, True, (3, 2, 3)),
        ({"gpus_per_node": 4}, OPEN, True, (3, 2, 5)),
        ({"gpus_per_node": "a100:8"}, OPEN, True, (2, 2, 2)),
        ({"gpus_per_node": 4, "exclude": "n[2-3]"}, OPEN, True, (1, 1, 2)),
        ({"gpus_per_node": 4, "constraint": "h100"}, OPEN, True, (1, 0, 1)),
        ({"gpus_per_node": 4}, {**OPEN, "OverSubscribe": "EXCLUSIVE"}, True, (3, 2, 3)),
        ({"cpus_per_node": 12}, OPEN, True, (3, 2, 4)),
        ({}, {**OPEN, "OverSubscribe": "FORCE:4"}, True, (3, 2, None)),
        ({}, {}, True, (3, 2, None)),
        ({}, OPEN, False, (3, 2, 3)),
        ({}, {**OPEN, "MaxNodes": "2"}, False, (3, 2, 2)),
        ({"gpus_per_node": 9}, OPEN, False, (0, 0, 0)),
    ],
)
def test_what_a_partition_holds_at_once(
    spec: dict[str, Any], settings: dict[str, str], tasks: bool, expected: tuple[int, int, int | None]
) -> None:
    """Nodes that fit, those that are up, and how many of the run they hold: tasks may share a host."""
    found = room_of(spec, "gpu", NODES, [settings], tasks=tasks)
    assert expected == found[1:4]


def test_what_there_is_is_said_in_a_line() -> None:
    """The limit is named where it is not the nodes."""
    assert "partition gpu has 3 nodes for this run, 2 of them up" == (
        room_of({}, "gpu", NODES, [OPEN], tasks=False).text()
    )
    assert (
        "the default partition has 3 nodes for this run, 2 of them up; room for 5 at once (GPUs: 4 each)"
        == (room_of({"gpus_per_node": 4}, "", NODES, [OPEN], tasks=True).text())
    )


def begun(home: Path, mode: str, nodes: str, expected: tuple[str, ...] = ()) -> RunPaths:
    """Return a run that was submitted as job 7 and has begun."""
    spec = JobSpec(command="true", nodes=nodes, mode=mode, run_dir=str(home / "run"), exclusive=True)
    wanted = plan(spec, read_template(mode), now_s=0)
    run_dir.create(wanted, now_s=0)
    submissions.announce(wanted.paths, 0, wanted.token, now_s=0)
    submissions.record(wanted.paths, Submission(0, wanted.token, "7"))
    open_log(wanted.paths, "n1").commit(lambda _: EpochStarted(Epoch(0, 0, 0, 0), "7", expected))
    return wanted.paths


@pytest.mark.parametrize("mode", ["step", "array"])
def test_what_can_never_run_is_refused_before_anything_changes(tmp_path: Path, mode: str) -> None:
    """Both numbers and what to give; what can be had is done, after a line about what there is."""
    paths = begun(tmp_path, mode, "1:5000", ("n1", "n2"))
    slurm = ArraySlurm(Partition="gpu")
    slurm.all_nodes, said = list(NODES), []  # type: ignore[var-annotated]
    with pytest.raises(InputError) as caught:
        scale(paths, 4000, said.append, slurm=slurm)
    assert (
        "--nodes: 4000 nodes are wanted, which can never run at once: "
        "partition gpu has 3 nodes for this run, 2 of them up\n  fix: give 3 or less"
    ) == str(caught.value)
    assert ([], []) == (slurm.done, said)
    assert read_state(paths).size is None
    if mode == "step":
        scale(paths, 3, said.append, slurm=slurm)
        assert "partition gpu has 3 nodes for this run, 2 of them up" == said[0]
        assert 3 == read_state(paths).wanted


def test_a_change_that_is_taken_back_stops_the_workers_all_the_same(tmp_path: Path) -> None:
    """The pause has been asked for; the round after it has the nodes that this one has."""
    paths, said = begun(tmp_path, "step", "1:2", ("n1", "n2")), []  # type: ignore[var-annotated]
    members = (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1))
    formed = RoundFormed(1, Epoch(0, 0, 0, 0), members, "n1", 1, None)
    open_log(paths, "n1").commit(lambda _: formed)
    for size in (1, 2):
        scale(paths, size, said.append, slurm=ArraySlurm())
    assert "the workers save and stop at one step all the same; the next round has 2 nodes" == said[1]
    drain = read_state(paths).drain
    assert drain is not None
    assert "scaled from 2 to 1 node by the user (hpc-elastic scale)" == drain.detail
    assert SizeWanted(0, 2, "hpc-elastic scale", None, 2) == read_state(paths).size


def test_nobody_is_refused_for_want_of_an_answer(tmp_path: Path) -> None:
    """Nor is anything said of a partition then."""
    paths, said = begun(tmp_path, "step", "1:8", ("n1", "n2")), []  # type: ignore[var-annotated]
    slurm = ArraySlurm()
    slurm.is_silent = True
    scale(paths, 8, said.append, slurm=slurm)
    assert ["the next round has up to 8 nodes"] == said


def test_a_job_that_submit_did_not_make_keeps_to_what_its_agents_were_started_for(tmp_path: Path) -> None:
    """Its command line is on record with its start; what it would never do is not promised."""
    paths = RunPaths(str(tmp_path / "run"))
    for directory in paths.directories():
        Path(directory).mkdir(parents=True, exist_ok=True)
    log = open_log(paths, "n1")
    log.commit(lambda _: EpochStarted(Epoch(0, 0, 0, 0), "7", ("n1", "n2"), "", "2:3"))
    with pytest.raises(InputError) as caught:
        scale(paths, 4, print, slurm=ArraySlurm())
    assert (
        "--nodes: the run was started for 2 to 3 nodes, and 4 are wanted\n  fix: give a number from 2 to 3"
        == (str(caught.value))
    )


@pytest.mark.parametrize("size", [1, 2])
def test_the_nodes_of_a_job_script_are_its_own_matter(tmp_path: Path, size: int) -> None:
    """No agent is there that could take part or stand by, and the advice names none."""
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\nsrun true\n")
    spec = JobSpec(command=str(tmp_path / "job.sbatch"), mode="script", run_dir=str(tmp_path / "run"))
    wanted = plan(spec, read_template("script"), now_s=0)
    run_dir.create(wanted, now_s=0)
    with pytest.raises(InputError) as caught:
        scale(wanted.paths, size, print, slurm=ArraySlurm())
    assert "RUN: job.sbatch is a job script of your own, and uses the nodes that it asks for\n" in str(
        caught.value
    )
    assert read_state(wanted.paths).size is None


@pytest.mark.parametrize(("nodes", "size"), [("1", 0), ("2:3", 0), ("2:3", -1)])
def test_a_run_without_nodes_is_ended_not_scaled(tmp_path: Path, nodes: str, size: int) -> None:
    """Whatever it was submitted for: one node is the default, which the stored spec leaves out."""
    paths = begun(tmp_path, "step", nodes, ("n1",))
    with pytest.raises(InputError) as caught:
        scale(paths, size, print, slurm=ArraySlurm())
    assert f"--nodes: a run has one node at least, and {size} are wanted\n" in str(caught.value)
    fix = f"save and end: hpc-elastic stop {paths.root}; at once: hpc-elastic cancel {paths.root}"
    assert str(caught.value).endswith(fix)
    assert read_state(paths).size is None
