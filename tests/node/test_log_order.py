"""The order of the lines of real agents and their workers, as ``hpc-elastic logs`` shows them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpc_elastic.account.log_marks import MOST_BYTES, marks_backwards
from hpc_elastic.cli import app
from hpc_elastic.node.setup.agent_log import LogMarks
from hpc_elastic.record.journal import RoundEnded
from hpc_elastic.testing.clock import FakeClock
from tests.node.agents import QUICK, MakeAgents

TURNS = """
import time
from hpc_elastic.account.log_marks import marks_backwards
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_records
rank, place = int(os.environ["RANK"]), os.environ["HPC_ELASTIC_RUN_DIR"]
marks = os.path.join(place, "logs", "agents", os.environ["HPC_ELASTIC_NODE"] + ".times")


def newest_mark():
    with open(marks, "rb") as file:
        return next(marks_backwards(file.read()), None)


def is_marked():
    out, newest = 2 * int(os.environ["LOCAL_RANK"]), newest_mark()
    return newest is not None and newest.sizes[out : out + 1] == (os.fstat(1).st_size,)


def late_s():  # at least how long after a record was written its agent has read it
    while (mark := newest_mark()) is None or mark.round != int(os.environ["HPC_ELASTIC_ROUND"]):
        time.sleep(0.01)
    written = read_records(RunPaths(place))[mark.known - 1].at
    return time.time() - (written - 3600 if written > time.time() else written)


late = late_s()
for turn in range(8):
    if turn % 4 == rank:
        time.sleep(late)
        print("turn", turn, flush=True)
        while not is_marked():
            time.sleep(0.01)
        open(os.path.join(place, f"turn{turn}"), "w").close()
    while not os.path.exists(os.path.join(place, f"turn{turn}")):
        time.sleep(0.01)
if rank == 3 and os.environ["HPC_ELASTIC_ROUND"] == "1":
    print("out of luck", file=sys.stderr)
    sys.exit(3)
"""
AHEAD = """
import sys, time
from hpc_elastic.clock import SystemClock
SystemClock.wall = staticmethod(lambda: time.time() + 3600)
from hpc_elastic.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_lines_are_in_order_over_nodes_though_a_clock_is_an_hour_ahead(
    make: MakeAgents, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ranks of two nodes print in turns, further apart than their agents read records late."""
    agents = make(TURNS)
    flags = ("--nnodes", "2", "--max-restarts", "1", "--redirects", "3")
    agents.start(0, *flags)
    argv = [sys.executable, "-c", AHEAD, "run", "--run-dir", agents.paths.root]
    argv += ["--node-rank", "1", "--nproc-per-node", "2", *QUICK, *flags, str(agents._script)]
    agents._run(1, argv, None)
    assert [0, 0] == [agents.code(node) for node in range(2)]
    capfd.readouterr()
    assert 0 == app.run(["logs", agents.paths.root, "--attempt", "all", "--grep", "turn|luck|restart 1"])
    lines = capfd.readouterr().out.splitlines()
    turns = [line for line in lines if "[1:" in line]
    assert [f"[1:rank {turn % 4}] turn {turn}" for turn in range(8)] == turns[:8]
    assert "[1:rank 3 err] out of luck" == turns[8]
    (restarted,) = [at for at, line in enumerate(lines) if "restart 1 of 1" in line]
    assert restarted > lines.index(turns[8])
    assert 8 == len([line for line in lines[restarted:] if "[2:" in line])
    assert 0 == app.run(["logs", agents.paths.root, "--first-failure"])
    assert ["[1:rank 3] turn 3", "[1:rank 3] turn 7", turns[8]] == capfd.readouterr().out.splitlines()
    assert 3 == agents.entries(RoundEnded)[0].failure["rank"]


def test_the_age_of_a_record_counts_from_the_first_look_after_it(tmp_path: Path) -> None:
    """An agent that reads a record between two marks tells in the next one how long ago that was."""
    clock, known, path = FakeClock(), [1], tmp_path / "n1.times"
    with (tmp_path / "n1.log").open("ab", buffering=0) as agent:
        marks = LogMarks(str(path), agent.fileno(), clock, lambda: known[0])
        agent.write(b"a line\n")
        marks.look(clock.monotonic())
        for advance, newest in ((0.25, 2), (0.25, 2), (0.5, 2)):
            clock.advance(advance)
            known[0] = newest
            agent.write(b"a line\n")
            marks.look(clock.monotonic())
        marks.close()
    assert [(2, 0.75), (0, 0.0)] == [(mark.known, mark.age) for mark in marks_backwards(path.read_bytes())]


def test_the_file_of_marks_stays_small_and_its_newest_marks_are_exact(tmp_path: Path) -> None:
    """Ten thousand marks of a long round are thinned; the newest seconds have their own."""
    clock, log, path = FakeClock(), tmp_path / "stdout.log", tmp_path / "n1.times"
    log.touch()
    with (tmp_path / "n1.log").open("ab") as agent:
        marks = LogMarks(str(path), agent.fileno(), clock, lambda: 1)
        marks.begin(1, 0, [str(log), ""])
        with log.open("ab", buffering=0) as file:
            for _ in range(10_000):
                file.write(b"1\n")
                clock.advance(1)
                marks.look(clock.monotonic())
        marks.close()
    assert path.stat().st_size <= MOST_BYTES
    found = [mark.sizes[0] for mark in marks_backwards(path.read_bytes()) if mark.sizes]
    assert [20_000, 19_998, 19_996] == found[:3]
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 10_000
    assert ["n1.log", "n1.times", "stdout.log"] == sorted(os.listdir(tmp_path))


def test_marks_go_on_behind_a_torn_one(tmp_path: Path) -> None:
    """The next agent of a node ends the line that a killed one has left; no mark is lost."""
    path = tmp_path / "n1.times"
    path.write_bytes(b"[1,5.0,0,0.0,0,1,[2,0]]\n[1,6.0,0,0.")
    with (tmp_path / "n1.log").open("ab", buffering=0) as agent:
        agent.write(b"a line\n")
        marks = LogMarks(str(path), agent.fileno(), FakeClock(), lambda: 1)
        marks.mark()
        marks.close()
    assert [(0, 7), (1, 1)] == [(mark.round, mark.agent) for mark in marks_backwards(path.read_bytes())]


@pytest.mark.timeout(120)
def test_another_file_in_the_place_of_the_marks_is_neither_waited_for_nor_read(tmp_path: Path) -> None:
    """Somebody who can rename a directory above may have put a pipe there since the file was opened."""
    path, line = tmp_path / "n1.times", b"[1,5.0,0,0.0,0,1,[2,0]]\n"
    path.write_bytes(line * (MOST_BYTES // len(line)))
    with (tmp_path / "n1.log").open("ab", buffering=0) as agent:
        marks = LogMarks(str(path), agent.fileno(), FakeClock(), lambda: 1)
        path.unlink()
        os.mkfifo(path)
        agent.write(b"a line\n")
        marks.mark()
        marks.close()
    newest, before, *_ = marks_backwards(path.read_bytes())
    assert [(0, 7), (1, 1)] == [(mark.round, mark.agent) for mark in (newest, before)]
