"""Where agents of `hpc-elastic run` meet if nobody has given a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpc_elastic.cli.run.flags import parser
from hpc_elastic.cli.run.nodes import RunPlace, check_room, node_name, place_of, settings_of
from hpc_elastic.cli.run.options import resolve
from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Decision, Drained, Entry, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.client.environment import SlurmEnv

STATIC = ("--nnodes=2", "--master-addr=n1", "--master-port=29500")
C10D = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400", "--rdzv-id=100")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def step(number: int = 0, task: int = 0, tasks: int = 1, restart: int = 0) -> dict[str, str]:
    """Return the environment of a task of a step of job 77."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": str(number),
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_PROCID": str(task),
        "SLURM_RESTART_COUNT": str(restart),
        "SLURMD_NODENAME": "n1",
    }


def place(*words: str, env: Mapping[str, str] | None = None) -> RunPlace:
    """Return where the agent of a line would go."""
    args = parser().parse_args([*words, "train.py"])
    slurm = SlurmEnv.from_environ(env or {})
    return place_of(args, env or {}, slurm, settings_of(args, slurm)[0].max_nodes)


def name(*words: str, env: Mapping[str, str] | None = None) -> str:
    """Return the name of the directory that it would take below the runs folder here."""
    found = place(*words, env=env)
    assert not found.is_named
    return os.path.relpath(found.paths.root, "hpc_elastic_runs")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (STATIC, "n1-29500"),
        ((*STATIC, "--rdzv-id=100"), "100_n1-29500"),
        (("--nnodes=2",), "127.0.0.1-29500"),
        (("--nnodes=2", "--rdzv-id=100"), "100"),
        (C10D, "100_n1-29400"),
        (("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1"), "n1"),
        (("--nnodes=2", "--rdzv-backend=etcd"), "none"),
        (("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=http://n1:2379"), "http-n1-2379"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_same_line_on_all_nodes_meets_in_one_place(words: tuple[str, ...], expected: str) -> None:
    """Lines with another id, host or port do not."""
    assert expected == name(*words, "--node-rank=0") == name(*words, "--node-rank=1")


def test_who_meets_nobody_is_alone() -> None:
    """Two such lines can run at once, with the same id too; --standalone passes the id by."""
    assert name().startswith("run-2")
    assert name("--rdzv-id=100").startswith("100_2")
    assert name(*C10D, "--standalone").startswith("run-2")


def test_who_is_alone_is_alone_in_a_container_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of several have the same id, and may start in the same second."""
    names = []
    for host in ("pod-1", "pod-2"):
        monkeypatch.setattr(os, "uname", lambda host=host: SimpleNamespace(nodename=host))
        names.append(name("--rdzv-id=100"))
    assert [True, True] == [host in name for host, name in zip(("pod-1", "pod-2"), names, strict=True)]


def test_the_run_id_is_what_was_given_else_the_directory() -> None:
    """A second run of the same name has the same id."""
    assert "100" == place(*C10D).run_id
    assert "n1-29500" == place(*STATIC).run_id
    assert place().run_id.startswith("run-2")
    assert place("--rdzv-id=5", "--standalone").run_id.startswith("run-2")


@pytest.mark.parametrize(
    ("words", "env", "root", "run_id"),
    [
        (("--run-dir=x", *C10D), {}, "x", "100"),
        (("--run-dir=x",), {}, "x", "x"),
        (C10D, {"HPC_ELASTIC_RUN_DIR": "y", "HPC_ELASTIC_RUN_ID": "z"}, "y", "100"),
        (("--rdzv-endpoint=./base", "--rdzv-id=5"), {}, "base/5", "5"),
        (("--rdzv-endpoint=./base",), {}, "base/none", "none"),
        (("--rdzv-backend=shared_fs", "--rdzv-endpoint=base"), {}, "base/none", "none"),
        (("--rdzv-backend=hpc_elastic", "--rdzv-endpoint=base"), {}, "base/none", "none"),
        (("--run-dir=x",), step(), "x", "77"),
        (("--run-dir=~/x",), {}, "x", "x"),
        (("--rdzv-endpoint=~/base", "--rdzv-id=5"), {}, "base/5", "5"),
    ],
    ids=[
        "flag",
        "flag without id",
        "variable",
        "endpoint",
        "endpoint without id",
        "word",
        "its other name",
        "Slurm",
        "home",
        "below home",
    ],
)
def test_a_directory_that_was_named(
    words: tuple[str, ...],
    env: dict[str, str],
    root: str,
    run_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is taken as it is, and needs no announcement."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = place(*words, env=env)
    assert (str(tmp_path / root), run_id, True) == (found.paths.root, found.run_id, found.is_named)


def test_a_step_of_slurms_has_a_place_of_its_own() -> None:
    """Steps of one job do not meet, whether one after the other or at once; a requeue finds it again."""
    assert "77" == name(env=step())
    assert "77.1" == name(env=step(1))
    assert "100_77" == name(*C10D, env=step()) == name(*C10D, env=step(restart=3))
    assert "77.2" == name(*C10D[:-1], "--rdzv-id=77", env=step(2))
    assert "100" == place(*C10D, env=step()).run_id
    assert "77" == place(env=step()).run_id


def test_tasks_of_a_step_that_want_to_be_alone() -> None:
    """Each has a run of its own."""
    assert "77" == name("--standalone", env=step())
    assert ["77_task0", "77_task1"] == [name("--standalone", env=step(0, task, 2)) for task in (0, 1)]
    assert "77" == name(env=step(0, 1, 2))


def a_run(name: str, *entries: Entry) -> None:
    """Make the directory of a run with these records."""
    paths = RunPaths(os.path.join("hpc_elastic_runs", name))
    prepare_run_dir(paths)
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


EPOCH = Epoch(0, 0, 0, 0)
DONE = RunEnded(Decision.DONE, 0, "", None)
FAILED = RunEnded(Decision.FAILED, 1, "", None)
LEFT = Drained(EPOCH, Cause.PREEMPTION, None, "")


@pytest.mark.parametrize("over", [DONE, FAILED, LEFT], ids=["done", "failed", "left"])
def test_a_run_that_is_over_does_not_stand_in_the_way(over: Entry) -> None:
    """The next one of the same name is another run; where the last one is, is told."""
    a_run("n1-29500", EpochStarted(EPOCH, "", ()), over)
    found = place(*STATIC)
    assert "n1-29500+2" == found.paths.name
    assert any("n1-29500 holds a run that is over" in note for note in found.notes)


def test_a_run_that_goes_on_is_joined() -> None:
    """Who comes later, or again, is one of its nodes."""
    a_run("n1-29500", EpochStarted(EPOCH, "", ()))
    assert "n1-29500" == name(*STATIC)


def test_an_endpoint_holds_run_after_run() -> None:
    """One that was left goes on there: somebody has chosen the place."""
    words = ("--nnodes=2", "--rdzv-endpoint=./hpc_elastic_runs", "--rdzv-id=5")
    a_run("5", EpochStarted(EPOCH, "", ()), LEFT)
    assert "5" == place(*words).paths.name
    a_run("5", EpochStarted(Epoch(0, 0, 1, 0), "", ()), FAILED)
    assert "5+2" == place(*words).paths.name


@pytest.mark.parametrize(
    ("over", "restart", "expected"),
    [(DONE, 0, "77"), (DONE, 1, "77"), (FAILED, 0, "77"), (FAILED, 1, "77+2"), (LEFT, 1, "77")],
    ids=["done", "done, requeued", "failed", "failed, requeued", "left, requeued"],
)
def test_a_step_that_is_started_again(over: Entry, restart: int, expected: str) -> None:
    """What is done stays done, what was left goes on; after a failure a requeue begins anew.

    In the same start it is a node that has come too late.
    """
    a_run("77", EpochStarted(EPOCH, "77", ()), over)
    assert expected == name(env=step(restart=restart))


@pytest.mark.parametrize("over", [DONE, FAILED], ids=["done", "failed"])
def test_the_next_line_of_a_script_that_a_step_runs(over: Entry) -> None:
    """A node that was in the run that is over begins another; in the endpoint's directory too."""
    a_run("77", EpochStarted(EPOCH, "77", ()), over)
    Path("hpc_elastic_runs/77/logs/agents/n1.log").touch()
    assert "77+2" == name(env=step())
    assert "77+2" == place("--rdzv-endpoint=./hpc_elastic_runs", env=step()).paths.name
    if over is DONE:
        assert "77" == name(env=step(restart=1))


def test_the_shell_of_an_allocation_is_no_step() -> None:
    """Lines typed there have nothing to do with each other."""
    assert name("--nnodes=1", env=step(0xFFFFFFFA)).startswith("run-2")


def test_a_place_that_others_can_hardly_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is of one machine; one node needs nobody else."""
    with_memory = Path("/dev/shm")
    monkeypatch.chdir(with_memory)
    assert any("on a disk of this machine (tmpfs)" in note for note in place(*STATIC).notes)
    assert not place().notes


def test_the_node_rank_goes_before_the_name() -> None:
    """So that it decides about the order; Slurm's name is kept as it is."""
    host = os.uname().nodename
    args = parser().parse_args(["--node-rank=3", "train.py"])
    assert f"3-{host}" == node_name(args, None)
    assert "n1" == node_name(args, SlurmEnv.from_environ(step()))
    assert host == node_name(parser().parse_args(["train.py"]), None)


def test_options_of_the_rendezvous() -> None:
    """Options with torch's names have our meaning, others are told; flags of ours go first."""
    times = "join_timeout=5,last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=4"
    conf = f"'{times},timeout=9,is_host=1'"  # as a line of torchrun's own tests has it
    args = parser().parse_args([f"--rdzv-conf={conf}", "--nnodes=2:4", "train.py"])
    settings, notes = settings_of(args, None)
    assert (2, 4, 5.0, 1.0, 2.0, 8.0) == (*settings[:4], settings.heartbeat_interval, settings.lease)
    assert ["--rdzv-conf: not needed here, without effect: timeout, is_host"] == notes
    args = parser().parse_args(["--rdzv-backend=etcd", "--rdzv-conf=timeout=50", "train.py"])
    settings, notes = settings_of(args, None)
    assert (50, []) == (settings.join_timeout, notes)
    args = parser().parse_args(["--rdzv-conf=lease=9", "--lease=6", "--join-timeout=7", "train.py"])
    settings, _ = settings_of(args, None)
    assert (6.0, 7.0) == (settings.lease, settings.join_timeout)
    args = parser().parse_args(["--heartbeat-interval=3", "train.py"])
    assert 9.0 == settings_of(args, None)[0].lease


def test_sizes() -> None:
    """Slurm's step tells how many nodes there are; a standalone line has one."""
    slurm = SlurmEnv.from_environ(step())
    sizes = [
        settings_of(parser().parse_args([*words, "a.py"]), slurm)[0][:2]
        for words in ((), ("--nnodes=1",), ("--nnodes=1:4",), ("--standalone", "--nnodes=4"))
    ]
    assert [(2, 2), (1, 1), (1, 4), (1, 1)] == sizes


def test_a_step_with_too_few_nodes_is_refused() -> None:
    """Nothing is started; only the minimum counts."""
    slurm = SlurmEnv.from_environ(step())
    with pytest.raises(InputError, match=r"2 nodes, --nnodes wants at least 3\n  fix: .*--nodes=3"):
        resolve(parser().parse_args(["--nnodes=3", "--no-python", "true"]), step())
    assert [] == os.listdir()
    check_room(2, step(), slurm)
    resolve(parser().parse_args(["--nnodes=1:8", "--no-python", "true"]), step())
    resolve(parser().parse_args(["--standalone", "--nnodes=3", "--no-python", "true"]), step())


def test_a_step_that_is_not_all_there_is_may_be_small() -> None:
    """A shell of Slurm's own, several agents on a node, a script that `submit` made, no list of nodes."""
    for env in (
        step(0xFFFFFFFA),
        step(tasks=4),
        {**step(), "HPC_ELASTIC_SUBMISSION": "0"},
        {**step(), "SLURM_STEP_NODELIST": ""},
    ):
        check_room(3, env, SlurmEnv.from_environ(env))
    check_room(3, {}, None)
