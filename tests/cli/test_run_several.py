"""Lines of torchrun for several nodes: the nodes meet, and a line can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hpc_elastic.testing.waiting import wait_until
from tests.cli.lines import LIMIT_S, Ended, Line

QUICK = ("--heartbeat-interval=0.2", "--lease=1.2")
STATIC = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", *QUICK)
C10D = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400", *QUICK)
SLEEP = "threading.Event().wait(600)\n"


def both(line: Line, *words: str, ranks: tuple[int, ...] = (0, 1)) -> list[Ended]:
    """Run a line on two nodes of this machine, to its end."""
    agents = [line.start(f"--node-rank={rank}", *words, "w.py") for rank in ranks]
    return [line.end(agent) for agent in agents]


@pytest.mark.parametrize("words", [STATIC, (*C10D, "--rdzv-id=100")], ids=["static", "c10d"])
def test_a_line_for_two_nodes_works_as_it_is_and_again(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The node ranks order the workers; a second run of the same line is another run."""
    line = Line(tmp_path)
    for expected in (1, 2):
        for file in tmp_path.glob("facts.*"):
            file.unlink()
        first, second = both(line, *words)
        assert [0, 0] == [first.code, second.code], first.err + second.err
        assert ["0", "1"] == second.env("RANK") == second.env("GROUP_RANK")
        assert ["2", "2"] == second.env("WORLD_SIZE")
        assert 1 == len(set(second.env("MASTER_PORT")))
        assert expected == len(line.run_dirs())
        place = tmp_path / "hpc_elastic_runs" / line.run_dirs()[-1]
        assert f"run directory: {place}\n" in first.err
        assert f"run directory: {place}\n" in second.err


def test_ranks_follow_the_node_ranks_and_not_the_start(tmp_path: Path) -> None:
    """Number 10 is behind number 2."""
    line = Line(tmp_path)
    later, first = both(line, *STATIC, ranks=(10, 2))
    assert [0, 0] == [later.code, first.code]
    nodes = first.env("HPC_ELASTIC_NODE")
    assert [f"{rank}-{os.uname().nodename}" for rank in (2, 10)] == nodes


def test_nodes_without_a_number(tmp_path: Path) -> None:
    """Agents on one machine are two nodes, as with torchrun."""
    line = Line(tmp_path)
    agents = [line.start(*C10D, "--rdzv-id=7", "w.py") for _ in range(2)]
    ended = [line.end(agent) for agent in agents]
    assert [0, 0] == [each.code for each in ended], ended[0].err
    assert ["0", "1"] == ended[0].env("RANK")


def test_two_lines_with_other_endpoints_do_not_meet(tmp_path: Path) -> None:
    """The same id, as many lines have it, does not bring them together."""
    line = Line(tmp_path)
    ports = [("--rdzv-endpoint=localhost:29401",), ("--rdzv-endpoint=localhost:29402",)]
    agents = [
        line.start(*C10D, *port, "--rdzv-id=100", f"--node-rank={rank}", "w.py")
        for port in ports
        for rank in (0, 1)
    ]
    assert [0] * 4 == [line.end(agent).code for agent in agents]
    assert ["100_localhost-29401", "100_localhost-29402"] == line.run_dirs()


def test_a_line_that_has_failed_can_be_run_again(tmp_path: Path) -> None:
    """From the beginning, with its whole budget."""
    line = Line(tmp_path, "sys.exit(9 if os.path.exists('bad') else 0)")
    (tmp_path / "bad").touch()
    assert [9, 9] == [ended.code for ended in both(line, *STATIC)]
    (tmp_path / "bad").unlink()
    again = both(line, *STATIC)
    assert [0, 0] == [ended.code for ended in again]
    assert ["0", "0"] == again[0].env("TORCHELASTIC_RESTART_COUNT")


def _wait_for_workers(line: Line, agents: list[subprocess.Popen[str]]) -> list[int]:
    wait_until(lambda: len(line.workers()) == len(agents), f"{len(agents)} workers to run", timeout_s=LIMIT_S)
    pids = [worker["pid"] for worker in line.workers()]
    for file in line.home.glob("facts.*"):
        file.unlink()
    return pids


def test_a_line_that_was_interrupted_can_be_run_again(tmp_path: Path) -> None:
    """As another run: nobody has said that the first is to go on."""
    line = Line(tmp_path, "threading.Event().wait(0 if os.path.exists('quick') else 600)")
    agents = [line.start(f"--node-rank={rank}", *STATIC, "w.py") for rank in (0, 1)]
    _wait_for_workers(line, agents)
    agents[0].send_signal(signal.SIGINT)
    assert 130 == line.end(agents[0]).code
    line.end(agents[1])
    (tmp_path / "quick").touch()
    assert [0, 0] == [ended.code for ended in both(line, *STATIC)]
    assert ["127.0.0.1-29500", "127.0.0.1-29500+2"] == line.run_dirs()


@pytest.mark.slow
def test_a_line_whose_agents_were_killed_can_be_run_again(tmp_path: Path) -> None:
    """It takes the run up as soon as the dead are known to be dead, and no restart is spent."""
    line = Line(tmp_path, "threading.Event().wait(0 if os.path.exists('quick') else 600)")
    agents = [line.start(f"--node-rank={rank}", *STATIC, "w.py") for rank in (0, 1)]
    _wait_for_workers(line, agents)
    for agent in agents:
        agent.kill()
        line.end(agent)
    (tmp_path / "quick").touch()
    ended = both(line, *STATIC)
    assert [0, 0] == [each.code for each in ended], ended[0].err
    assert ["127.0.0.1-29500"] == line.run_dirs()
    assert ["0", "0"] == ended[0].env("TORCHELASTIC_RESTART_COUNT")


def test_an_elastic_line_starts_with_what_is_there(tmp_path: Path) -> None:
    """And does not wait longer than the last call."""
    ended = Line(tmp_path).run(
        *("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400"),
        *("--rdzv-conf=last_call_timeout=0.2,join_timeout=5", "w.py"),
    )
    assert (0, ["1"]) == (ended.code, ended.env("WORLD_SIZE")), ended.err


def test_a_node_that_never_comes(tmp_path: Path) -> None:
    """The error names the directory where it was waited for."""
    ended = Line(tmp_path).run(*C10D, "--rdzv-conf=join_timeout=0.3", "w.py")
    assert 76 == ended.code
    assert "1 of 2 nodes" in ended.err
    assert "hpc_elastic_runs/localhost-29400" in ended.err
