"""Whole agents with real workers: rounds, failures, losses, ends."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    Epoch,
    EpochStarted,
    NodeUnfit,
    RoundEnded,
)
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_log import open_log, read_records
from hpc_elastic.slurm.operate.scale import scale
from hpc_elastic.store.node_events import Fault
from tests.node.agents import SLEEP, MakeAgents, crash, gone, slurm, wait_for

FAILS_ON_NODE_1 = (
    """
import time
if os.environ["HPC_ELASTIC_NODE"] == "n1":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
if os.environ["WORLD_SIZE"] == "6":
    """
    + SLEEP
)


def test_a_node_that_always_fails_is_left_out_and_the_others_go_on(make: MakeAgents) -> None:
    """Its agent leaves as unfit, with the failure in its words; the run is done without it."""
    agents = make(FAILS_ON_NODE_1).submitted()
    for node in range(3):
        flags = ("--nnodes=2:3", "--max-restarts=9", "--same-failure=2", "--redirects=3")
        agents.start(node, *flags, env=slurm(f"n{node}", "n[0-2]"))
    assert [0, ExitCode.UNFIT, 0] == [agents.code(node) for node in range(3)]
    assert [3, 3, 2] == [len(formed.members) for formed in agents.rounds()]
    (unfit,) = agents.entries(NodeUnfit)
    assert unfit.by_failures
    assert "n1" == unfit.node
    assert "the same failure 2 times in a row, always on n1" in unfit.reason
    assert "CUDA out of memory" in unfit.reason
    (blamed,) = node_faults(read_records(agents.paths), "r")
    assert (unfit.node, Fault.UNFIT) == (blamed.event.host, blamed.event.fault)
    assert "the run goes on without that node first" in agents.output(1)


def test_workers_get_their_places(make: MakeAgents) -> None:
    """Two nodes with 2 and 3 workers: ranks, sizes and one master, the same for all."""
    agents = make("")
    agents.start(0, "--nnodes", "2")
    agents.start(1, "--nnodes", "2", "--nproc-per-node", "3")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    workers = agents.workers(1)
    assert ["0", "1", "2", "3", "4"] == [worker["RANK"] for worker in workers]
    assert ["0", "1", "0", "1", "2"] == [worker["LOCAL_RANK"] for worker in workers]
    assert ["0", "0", "1", "1", "1"] == [worker["GROUP_RANK"] for worker in workers]
    assert {"5"} == {worker["WORLD_SIZE"] for worker in workers}
    assert ["2", "2", "3", "3", "3"] == [worker["LOCAL_WORLD_SIZE"] for worker in workers]
    assert 1 == len({(worker["MASTER_ADDR"], worker["MASTER_PORT"]) for worker in workers})


def test_a_crash_restarts_all_workers(make: MakeAgents) -> None:
    """A crashed worker ends the round on both nodes; all workers start again in the next."""
    agents = make(crash("1", "raise ValueError('first')"))
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert gone(agents.workers(1))
    assert ["1"] * 4 == [worker["TORCHELASTIC_RESTART_COUNT"] for worker in agents.workers(2)]
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.CRASH, 3) == (ended.cause, ended.failure["rank"])


def test_rounds_leave_no_files_in_which_nothing_stands(make: MakeAgents) -> None:
    """Of three rounds of silent workers one directory each is left, and what the failed ranks said."""
    agents = make(crash("1 2", "raise ValueError('first')"))
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "2", "--redirects", "3")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    logs = Path(agents.paths.logs)
    left = {f"{path.parent.name}/{path.name}": os.listdir(path) for path in logs.glob("attempt_*/*")}
    assert {"attempt_1/3", "attempt_2/3"} == set(left)
    assert {"stdout.log", "stderr.log"} == {*left["attempt_1/3"]} - {"error.json"}
    assert (logs / "attempt_3").is_dir()


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 128 + 9)], ids=["exit", "signal"]
)
def test_the_last_failure_ends_all_agents_alike(make: MakeAgents, code: str, expected: int) -> None:
    """Out of restarts every agent ends with the worker's code and prints the same root cause."""
    agents = make(crash("1 2", code))
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1")
    outputs = [agents.output(node) for node in (0, 1)]
    assert [expected, expected] == [agents.code(0), agents.code(1)]
    for output in outputs:
        assert 1 == output.count("Root Cause")
        assert "rank      : 3" in output
    state = agents.state()
    assert state.ending is not None
    assert (Decision.FAILED, 2) == (state.ending.decision, state.rounds)
    assert gone(agents.workers(1) + agents.workers(2))


def test_a_lost_node_makes_the_world_smaller(make: MakeAgents) -> None:
    """SIGKILL of one of 1:2 agents: its workers die with it, the other forms a world of its own."""
    agents = make(SLEEP)
    for node in (0, 1):
        agents.start(node, "--nnodes", "1:2", "--last-call-timeout", "20")
    first = agents.wait_workers(1, 4)
    agents._agents[0].kill()
    second = agents.wait_workers(2, 2)
    assert {"2"} == {worker["WORLD_SIZE"] for worker in second}
    wait_for(lambda: gone(first), "the first round's workers to end")
    assert [Cause.NODE_LOSS] == [entry.cause for entry in agents.entries(RoundEnded)]


def test_a_frozen_node_is_given_up_and_comes_back(make: MakeAgents) -> None:
    """An agent stopped beyond its lease is replaced; when it wakes it ends its workers and rejoins."""
    agents = make(SLEEP)
    started = [agents.start(node, "--nnodes", "1:2") for node in (0, 1)]
    first = agents.wait_workers(1, 4)
    started[1].send_signal(signal.SIGSTOP)
    agents.wait_workers(2, 2)
    started[1].send_signal(signal.SIGCONT)
    third = agents.wait_workers(3, 4)
    assert 1 == len({(worker["MASTER_ADDR"], worker["MASTER_PORT"]) for worker in third})
    wait_for(lambda: gone(first), "the first round's workers to end")


def test_a_joining_node_makes_the_world_larger(make: MakeAgents) -> None:
    """A third agent of 2:3 joins: one new round, everybody agrees on its size and master."""
    agents = make(SLEEP)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2:3", "--last-call-timeout", "0.5")
    agents.wait_workers(1, 4)
    agents.start(2, "--nnodes", "2:3")
    workers = agents.wait_workers(2, 6)
    assert {"6"} == {worker["WORLD_SIZE"] for worker in workers}
    assert 1 == len({(worker["MASTER_ADDR"], worker["MASTER_PORT"]) for worker in workers})
    assert {"0"} == {worker["TORCHELASTIC_RESTART_COUNT"] for worker in workers}


def test_a_spare_waits_until_it_is_needed(make: MakeAgents) -> None:
    """A third agent of exactly two stands by and takes the place of a lost one; the other keeps its rank."""
    agents = make(SLEEP)
    started = [agents.start(node, "--nnodes", "2") for node in (0, 1)]
    agents.wait_workers(1, 4)
    agents.start(2, "--nnodes", "2")
    started[0].kill()
    agents.wait_workers(2, 4)
    host = os.uname().nodename
    assert [f"2-{host}", f"1-{host}"] == [member.node for member in agents.rounds()[1].members]


def test_the_size_changes_while_it_runs(make: MakeAgents) -> None:
    """A smaller size sends the last nodes to stand by; a larger one takes them in again."""
    agents = make(SLEEP).submitted()
    for node in range(3):
        agents.start(node, "--nnodes", "1:3", env=slurm(f"n{node}", "n[0-2]"))
    agents.wait_workers(1, 6)
    scale(agents.paths, 2, print)
    agents.wait_workers(2, 4)
    scale(agents.paths, 3, print)
    agents.wait_workers(3, 6)
    sizes = [[member.node for member in formed.members] for formed in agents.rounds()]
    assert [["n0", "n1", "n2"], ["n0", "n1"], ["n0", "n1", "n2"]] == sizes
    logs = [Path(agents.paths.agent_log(f"n{node}")).read_text() for node in range(3)]
    assert "round 2 has 2 nodes in place of 3: scaled from 3 to 2 nodes by the user" in logs[0]
    assert "round 3 has 3 nodes in place of 2: scaled from 2 to 3 nodes by the user" in logs[0]
    assert "scaled" not in logs[1] + logs[2]


def test_missing_nodes_are_named(make: MakeAgents) -> None:
    """When the join deadline passes, the job is handed back and the absent nodes are named."""
    agents = make("").submitted()
    agents.start(0, "--join-timeout", "1", env=slurm("n1", "n[1-3]"))
    output = agents.output(0)
    assert ExitCode.REQUEUE == agents.code(0)
    assert "1 of 3 nodes joined within 1 s; missing: n2, n3" in output
    assert [Cause.JOIN_TIMEOUT] == [entry.cause for entry in agents.entries(Drained)]


def test_ranks_follow_slurms_node_order(make: MakeAgents) -> None:
    """Nodes take their places in Slurm's order, whoever comes first; node10 after node9."""
    agents = make("").submitted()
    for place, node in enumerate(("n10", "n9")):
        agents.start(place, env=slurm(node, "n[9-10]"))
    assert [0, 0] == [agents.code(0), agents.code(1)]
    assert ["n9", "n10"] == [member.node for member in agents.rounds()[0].members]


def test_a_newer_start_fences_this_one(make: MakeAgents) -> None:
    """An agent that sees a newer start of the run ends its workers and stands down."""
    agents = make(SLEEP)
    agents.start(0)
    workers = agents.wait_workers(1, 2)
    open_log(agents.paths, "test").commit(lambda _state: EpochStarted(Epoch(0, 0, 5, 0), "", ()))
    assert ExitCode.FENCED == agents.code(0)
    assert gone(workers)


def test_a_finished_run_is_not_run_again(make: MakeAgents) -> None:
    """Started again, a run that is done ends at once, as done."""
    agents = make("")
    agents.start(0)
    assert 0 == agents.code(0)
    agents.start(1)
    assert 0 == agents.code(1)
    assert 1 == len(agents.rounds())


def test_a_run_directory_that_fails_costs_time_only(make: MakeAgents) -> None:
    """While the run directory refuses, workers go on and nobody is given up; then all is as before."""
    agents = make(SLEEP)
    for node in (0, 1):
        agents.start(node, "--nnodes", "2")
    workers = agents.wait_workers(1, 4)
    members = Path(agents.paths.members)
    away = members.with_name("away")
    members.rename(away)
    members.touch()  # now every look and beat fails: not a directory
    log = Path(agents.paths.agent_log("1-" + os.uname().nodename))
    SystemClock().sleep(2.0)  # longer than the lease: nobody may be given up meanwhile
    members.unlink()
    away.rename(members)
    SystemClock().sleep(1.0)
    assert 1 == len(agents.rounds())
    assert agents.state().ended is None
    assert not gone(workers)
    assert log.exists()


def test_logs_are_kept_per_round_and_rank(make: MakeAgents) -> None:
    """With redirects, each round and rank has its own files, and earlier ones stay."""
    worker = "print('out', os.environ['RANK'], flush=True); open(file + '.printed', 'w').close()\n"
    wait = (
        "while len([name for name in os.listdir(place) if name.endswith('.printed')]) < 4: time.sleep(0.01)"
    )
    agents = make(worker + crash("1", f"{wait}\n    raise ValueError('first')"))
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1", "--redirects", "3")
    assert [0, 0] == [agents.code(0), agents.code(1)]
    logs = Path(agents.paths.logs)
    for number in (1, 2):
        for rank in range(4):
            assert f"out {rank}\n" == (logs / f"attempt_{number}" / str(rank) / "stdout.log").read_text()
    assert "ValueError: first" in (logs / "attempt_1" / "3" / "stderr.log").read_text()


def test_others_run_directory_is_refused(make: MakeAgents) -> None:
    """A run directory that others can write to is refused with the reason and the fix."""
    agents = make("")
    os.mkdir(agents.paths.root)
    os.chmod(agents.paths.root, 0o777)
    agents.start(0)
    output = agents.output(0)
    assert ExitCode.USAGE == agents.code(0)
    assert "others can write to it (mode 777)" in output
    assert "chmod 700" in output
    shutil.rmtree(agents.paths.root)


def test_crashes_caused_by_a_lost_node_cost_no_restart(make: MakeAgents) -> None:
    """The peers of a lost node's workers fail first, as collectives do; the run goes on all the same."""
    agents = make(
        "import time\n"
        "if os.environ['HPC_ELASTIC_ROUND'] == '1' and os.environ['RANK'] < '2':\n"
        "    while not os.path.exists(os.path.join(place, 'lost')): time.sleep(0.01)\n"
        "    sys.exit(9)\n" + SLEEP
    )
    for node in (0, 1):
        agents.start(node, "--nnodes", "1:2", "--max-restarts", "0")
    agents.wait_workers(1, 4)
    agents._agents[1].kill()
    Path(agents.paths.logs, "lost").touch()
    agents.wait_workers(2, 2)
    (ended,) = agents.entries(RoundEnded)
    assert (Cause.CRASH, 0) == (ended.cause, agents.state().crashes)


def test_a_node_lost_before_its_end_is_not_done(make: MakeAgents) -> None:
    """When one node has succeeded and the other vanishes, the run is not done: its work is done again."""
    agents = make(
        "import time\n"
        "if os.environ['HPC_ELASTIC_ROUND'] == '1' and os.environ['RANK'] > '1': time.sleep(600)\n"
    )
    started = [agents.start(node, "--nnodes", "1:2") for node in (0, 1)]
    agents.wait_workers(1, 4)
    wait_for(lambda: any("succeeded" in name for name in os.listdir(agents.paths.members)), "one success")
    started[1].kill()
    assert 0 == agents.code(0)
    assert [4, 2] == [sum(member.slots for member in formed.members) for formed in agents.rounds()]
