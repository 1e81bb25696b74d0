"""Users' own launchers over several nodes: restarts, losses, joins, ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.testing.waiting import wait_until
from tests.agent.elastic_nodes import Nodes, gate, open_gate
from tests.agent.elastic_program import SIGNALLED, Options, handler_of
from tests.node.agents import is_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FOR_EVER = "while :; do sleep 0.1; done"
TWO: dict[str, Any] = {"min_nodes": 2, "max_nodes": 2}
UP_TO_TWO: dict[str, Any] = {"min_nodes": 1, "max_nodes": 2}


@pytest.fixture(params=["shared_fs", "dynamic"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    """Return nodes that meet by one of our handlers."""
    made = Nodes(tmp_path, request.param)
    yield made
    made.end()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Nodes]:
    """Return nodes that meet by the handler that tells of lost nodes."""
    made = Nodes(tmp_path)
    yield made
    made.end()


def _until(number: str, least: int) -> str:
    """Return shell code that waits until a number is large enough."""
    return f"until [ {number} -ge {least} ]; do sleep 0.05; done; "


def _once_waiting(nodes: Nodes) -> str:
    """Return shell code that waits until the agent of node a is in the exit barrier."""
    return f"until grep -q 'Waiting 60' '{nodes.root}/a.log'; do sleep 0.05; done; "


def test_roles_and_sizes_differ(nodes: Nodes) -> None:
    """Each worker has its own ranks, in the world and in its role; all have one master."""
    nodes.start("a", min_nodes=3, max_nodes=3, workers=2, role="trainer")
    nodes.start("b", min_nodes=3, max_nodes=3, workers=1, role="reader")
    nodes.start("c", min_nodes=3, max_nodes=3, workers=3, role="trainer")
    results = {name: nodes.result(name) for name in "abc"}
    assert {"SUCCEEDED"} == {result["state"] for result in results.values()}
    told = sorted(nodes.told())
    assert [0, 1, 2, 3, 4, 5] == [worker.rank for worker in told]
    assert {6} == {worker.world_size for worker in told}
    assert 1 == len({worker.master for worker in told})
    trainers = sorted(worker.role_rank for worker in told if worker.role == "trainer")
    assert [0, 1, 2, 3, 4] == trainers
    assert {("trainer", 5), ("reader", 1)} == {(worker.role, worker.role_world_size) for worker in told}
    sizes = {name: len(results[name]["ranks"]) for name in "abc"}
    assert {"a": 2, "b": 1, "c": 3} == sizes


def test_a_crash_restarts_the_workers_of_all(nodes: Nodes) -> None:
    """The node whose worker has crashed uses a restart, the other one none; all have the same master."""
    told = f'"$(wc -l < "{nodes.root}/told")"'
    crash_once = f'if [ $RANK = 1 ] && mkdir "{nodes.root}/crashed"; then {_until(told, 2)} exit 7; fi; '
    for name in "ab":
        nodes.start(name, crash_once + _until(told, 4), **TWO, max_restarts=1)
    results = [nodes.result(name) for name in "ab"]
    assert ["SUCCEEDED"] * 2 == [result["state"] for result in results]
    assert [0, 1] == sorted(result["remaining_restarts"] for result in results)
    first, second = sorted(nodes.told()[:2]), sorted(nodes.told()[2:])
    for workers in (first, second):
        assert [(0, 2), (1, 2)] == [(worker.rank, worker.world_size) for worker in workers]
        assert 1 == len({worker.master for worker in workers})
    assert not any(is_running(worker.pid) for worker in first)


def test_a_node_joins(nodes: Nodes) -> None:
    """All workers start again with the larger world and agree on its master; no restart is used."""
    nodes.start("a", gate(nodes.root), **UP_TO_TWO)
    (alone,) = nodes.wait_told(1)
    assert (0, 1) == (alone.rank, alone.world_size)
    nodes.start("b", gate(nodes.root), **UP_TO_TWO)
    together = nodes.wait_told(3)[1:]
    assert [(0, 2), (1, 2)] == sorted((worker.rank, worker.world_size) for worker in together)
    assert 1 == len({worker.master for worker in together})
    assert not is_running(alone.pid)
    open_gate(nodes.root)
    results = [nodes.result(name) for name in "ab"]
    assert ["SUCCEEDED"] * 2 == [result["state"] for result in results]
    assert {0} == {worker.restarts for worker in nodes.told()}


def test_a_node_is_lost(shared: Nodes) -> None:
    """The survivor's workers start again without it, although they had not noticed anything."""
    for name in "ab":
        shared.start(name, gate(shared.root), **UP_TO_TWO)
    lost = shared.wait_told(2)
    shared.kill_node("b")
    alone = shared.wait_told(3)[2]
    assert (0, 1) == (alone.rank, alone.world_size)
    assert not any(is_running(worker.pid) for worker in lost)
    open_gate(shared.root)
    assert ("SUCCEEDED", [0]) == (shared.result("a")["state"], shared.result("a")["ranks"])


def test_who_is_ready_waits_for_the_others(nodes: Nodes) -> None:
    """An agent whose workers have succeeded stays until those of the other have, too."""
    nodes.start("a", "", **TWO)
    nodes.start("b", gate(nodes.root), **TWO)
    nodes.wait_told(2)
    wait_until(lambda: "Waiting 60" in nodes.log("a"), "the first waits in the barrier", timeout_s=120)
    open_gate(nodes.root)
    results = [nodes.result(name) for name in "ab"]
    assert ["SUCCEEDED"] * 2 == [result["state"] for result in results]
    assert all("Done waiting for other agents" in result["log"] for result in results)


def test_nobody_waits_for_the_lost(shared: Nodes) -> None:
    """An agent in the exit barrier leaves when it is alone, long before the timeout."""
    shared.start("a", "", **TWO)
    shared.start("b", "sleep 600", **TWO)
    shared.wait_told(2)
    shared.kill_node("b")
    result = shared.result("a")
    assert "SUCCEEDED" == result["state"]
    assert "no other agent is left" in result["log"]


def test_who_has_succeeded_starts_again_with_the_others(nodes: Nodes) -> None:
    """A crash elsewhere ends the round for an agent in the exit barrier, too: a world is whole."""
    crash_once = f'if [ "$1" = b ] && mkdir "{nodes.root}/crashed"; then {_once_waiting(nodes)}exit 7; fi'
    nodes.start("a", "true", **TWO, max_restarts=1)
    nodes.start("b", f"set -- b; {crash_once}", **TWO, max_restarts=1)
    results = [nodes.result(name) for name in "ab"]
    assert ["SUCCEEDED"] * 2 == [result["state"] for result in results]
    again = nodes.told()[2:]
    assert [(0, 2), (1, 2)] == sorted((worker.rank, worker.world_size) for worker in again)


def test_the_missing_are_named(nodes: Nodes) -> None:
    """When the barrier's time is over, who has not come is told; the workers have succeeded all the same."""
    nodes.start("a", "", **TWO, exit_barrier_timeout=0.5)
    nodes.start("b", gate(nodes.root), **TWO)
    result = nodes.result("a")
    open_gate(nodes.root)
    assert "SUCCEEDED" == result["state"]
    assert "Error waiting on exit barrier" in result["log"]
    missing = result["log"].partition("missing_ranks")[2]
    assert "(b)" in missing or missing.startswith("=[")  # a round with a record has names


def test_failure_for_good_holds_nobody_up(nodes: Nodes) -> None:
    """An agent out of restarts tells so at the barrier; the one that waits there leaves at once."""
    nodes.start("a", "", **TWO)
    nodes.start("b", f"{_once_waiting(nodes)}exit 7", **TWO)
    succeeded, failed = nodes.result("a"), nodes.result("b")
    assert ("SUCCEEDED", "FAILED") == (succeeded["state"], failed["state"])
    assert [7] == list(failed["failures"].values())
    assert "Done waiting for other agents" in succeeded["log"]


def test_who_closes_the_run_ends_it_for_all(shared: Nodes) -> None:
    """Workers that run are ended, and their agent tells why."""
    shared.start("a", "sleep 600", **UP_TO_TWO)
    (worker,) = shared.wait_told(1)
    other = handler_of(Options(str(shared.root / "run"), "other", "", "", max_nodes=2))
    other.set_closed()
    result = shared.result("a")
    assert "closed" == result["state"]
    assert "run-1" in result["words"]
    assert not is_running(worker.pid)


def test_a_signal_before_the_first_round(shared: Nodes) -> None:
    """An agent that waits for others is ended at once, and has no workers to leave behind."""
    agent = shared.start("a", **TWO)
    wait_until((shared.root / "run" / "members").exists, "the agent waits", timeout_s=120)
    wait_until(lambda: any((shared.root / "run" / "members").iterdir()), "the agent waits", timeout_s=120)
    agent.send_signal(signal.SIGTERM)
    assert SIGNALLED == agent.wait(120)
    assert "ended by SIGTERM" == shared.result("a")["state"]


def test_a_signal_ends_the_workers(shared: Nodes) -> None:
    """Workers get the signal itself."""
    agent = shared.start(
        "a", f"trap 'echo usr > {shared.root}/heard; exit 3' HUP; while :; do sleep 0.05; done"
    )
    shared.wait_told(1)
    agent.send_signal(signal.SIGHUP)
    assert "ended by SIGHUP" == shared.result("a")["state"]
    assert "usr\n" == (shared.root / "heard").read_text()


def test_a_second_signal_is_obeyed_at_once(shared: Nodes) -> None:
    """Workers that do not heed the first are killed, and never left behind."""
    agent = shared.start("a", f"trap '' TERM; touch {shared.root}/deaf; {FOR_EVER}", shutdown_timeout=600)
    (worker,) = shared.wait_told(1)
    wait_until((shared.root / "deaf").exists, "the worker is deaf", timeout_s=120)
    agent.send_signal(signal.SIGTERM)
    wait_until(lambda: "death signal, shutting down" in shared.log("a"), "the first is heard", timeout_s=120)
    agent.send_signal(signal.SIGTERM)
    assert "ended by SIGTERM" == shared.result("a")["state"]
    assert not is_running(worker.pid)


def test_the_time_of_grace_is_kept_after_a_failure(shared: Nodes) -> None:
    """Siblings of a failed worker that do not heed SIGTERM are killed after the shutdown timeout."""
    deaf = shared.root / "deaf"
    command = (
        f"if [ $RANK = 0 ]; then trap '' TERM; touch {deaf}; {FOR_EVER}; fi;"
        f" until [ -e {deaf} ]; do sleep 0.05; done; exit 7"
    )
    shared.start("a", command, workers=2, shutdown_timeout=0.5)
    result = shared.result("a")
    assert {"1": 7} == result["failures"]
    assert result["took"] < 10
    assert not any(is_running(worker.pid) for worker in shared.told())


def test_nothing_outlives_a_killed_agent(shared: Nodes) -> None:
    """What the workers have started themselves ends with it, too."""
    pids = shared.root / "pids"
    shared.start("a", f"setsid sleep 600 & sleep 600 & echo $! >> {pids}; jobs -p >> {pids}; wait")
    (worker,) = shared.wait_told(1)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) >= 3, "its processes", timeout_s=120)
    shared.kill_node("a")
    started = [worker.pid, *map(int, pids.read_text().split())]
    wait_until(lambda: not any(map(is_running, started)), "all have ended", timeout_s=120)
