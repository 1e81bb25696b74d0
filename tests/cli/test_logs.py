"""``hpc-elastic logs`` on run directories with marks of agents, and the lines that are chosen."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hpc_elastic.account.log_marks import LogMark, encode_mark
from hpc_elastic.cli import app
from hpc_elastic.clock import date_text
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, RoundEnded, RoundFormed
from tests.cli.recorded_runs import BEGAN, EPOCH, MEMBERS, NAN, STARTED, paths, write

__all__ = ["paths"]
ENTRIES = (
    (0, STARTED),
    (1, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
    (9, RoundEnded(1, Cause.CRASH, ("n2",), NAN)),
)


def put(paths: RunPaths, rank: int, text: str, *, round_number: int = 1, name: str = "stdout.log") -> None:
    """Write the log of a worker."""
    directory = Path(paths.worker_logs(round_number, rank))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)


def mark(paths: RunPaths, node: str, after_s: float, *sizes: int, agent: int = 0, number: int = 1) -> None:
    """Write a mark as the agent of a node does."""
    first = 2 * (node == "n2")
    with open(paths.log_times(node), "ab") as file:
        file.write(encode_mark(LogMark(number, BEGAN + after_s, 0, 0.0, first, agent, sizes)))


@pytest.fixture
def marked(paths: RunPaths) -> RunPaths:
    """Return a run of two nodes: n2 prints after n1, goes on before it, and its agent reports a failure."""
    write(paths, *ENTRIES)
    put(paths, 0, "one\nthree\n")
    put(paths, 2, "two\ntorn")
    put(paths, 3, "nan\n", name="stderr.log")
    Path(paths.agent_log("n2")).write_text("[x n2] worker failed\n")
    Path(paths.agent_log("n1")).touch()
    for node, after_s, *sizes in (("n1", 1, 4, 0, 0, 0), ("n2", 2, 4, 0, 0, 0), ("n1", 4, 10, 0, 0, 0)):
        mark(paths, str(node), float(after_s), *map(int, sizes))
    mark(paths, "n2", 5, 6, 0, 0, 0)
    mark(paths, "n2", 6, 6, 0, 0, 4)
    mark(paths, "n2", 7, 8, 0, 0, 4, agent=21)
    return paths


ALL = [
    "[1:rank 0] one",
    "[1:rank 2] two",
    "[1:rank 0] three",
    "[1:rank 3 err] nan",
    "[1:rank 2] torn",
    "[x n2] worker failed",
]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ALL),
        (["-n", "4"], ALL[2:]),
        (["-n", "0"], ALL),
        (["--node", "n1"], [ALL[0], ALL[2]]),
        (["--rank", "2"], [ALL[1], ALL[4]]),
        (["--grep", "^t"], [ALL[1], ALL[2], ALL[4]]),
        (["--grep", "^t", "-n", "2"], [ALL[2], ALL[4]]),
        (["--first-failure"], [ALL[3]]),
    ],
)
def test_lines_of_two_nodes_are_in_order_of_time(
    marked: RunPaths, capfd: pytest.CaptureFixture[str], flags: list[str], expected: list[str]
) -> None:
    """A line belongs to the first mark behind its end; of one moment the agent's line is the last."""
    assert 0 == app.run(["logs", marked.root, *flags])
    assert expected == capfd.readouterr().out.splitlines()


def test_lines_since_a_time(marked: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A date with a time, in local time; all lines after it, however many."""
    since = date_text(BEGAN + 4).replace(" ", "T")
    assert 0 == app.run(["logs", marked.root, "--since", since])
    assert ALL[2:] == capfd.readouterr().out.splitlines()
    assert 0 == app.run(["logs", marked.root, "--since", since, "-n", "1"])
    assert ALL[-1:] == capfd.readouterr().out.splitlines()


def test_damaged_marks_hide_no_line(marked: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Lines that only damaged marks tell of come by the time of their file, or of the next mark."""
    Path(marked.log_times("n1")).write_bytes(b"\0" * 40 + b"\n[1,5.0,")
    with open(marked.log_times("n2"), "r+b") as file:
        file.write(b"garbage")
    assert 0 == app.run(["logs", marked.root])
    assert sorted(ALL) == sorted(capfd.readouterr().out.splitlines())


def test_lines_behind_the_last_mark_are_shown(marked: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The agent may be killed before it looks again; a log that lost its marks is whole as well."""
    put(marked, 1, "late\n")
    with open(os.path.join(marked.worker_logs(1, 0), "stdout.log"), "a") as file:
        file.write("four\n")
    assert 0 == app.run(["logs", marked.root, "-n", "2"])
    assert {"[1:rank 1] late", "[1:rank 0] four"} == set(capfd.readouterr().out.splitlines())


def test_every_round_is_shown_in_order(marked: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The newest alone, unless another one, or all, are asked for; a log without marks has its own time."""
    shutil.rmtree(marked.journal)
    write(marked, *ENTRIES, (10, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, None)))
    put(marked, 1, "again\n", round_number=2)
    for flags, expected in (
        ([], [ALL[-1], "[2:rank 1] again"]),
        (["--attempt", "all"], [*ALL, "[2:rank 1] again"]),
        (["--attempt", "1", "-n", "2"], ALL[3:5]),
    ):
        assert 0 == app.run(["logs", marked.root, *flags])
        assert expected == capfd.readouterr().out.splitlines()


def test_the_lines_for_programs(marked: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Each line has its time, node, round, rank and stream; a byte that is no text stands as such."""
    with open(os.path.join(marked.worker_logs(1, 3), "stderr.log"), "wb") as file:
        file.write(b"\xff\x1b\n")
    assert 0 == app.run(["logs", marked.root, "--json", "-n", "3"])
    said = json.loads(capfd.readouterr().out)
    assert (1, "logs", marked.root) == (said["format"], said["kind"], said["run"])
    worker, _, agent = said["lines"]
    assert {
        "at": BEGAN + 6,
        "node": "n2",
        "round": 1,
        "rank": 3,
        "stream": "stderr",
        "text": "�\x1b",
    } == worker
    assert ("n2", None, None, None) == tuple(agent[name] for name in ("node", "round", "rank", "stream"))
    assert 0 == app.run(["logs", marked.root, "--json", "--grep", "nowhere"])
    assert [] == json.loads(capfd.readouterr().out)["lines"]


def test_the_newest_lines_of_a_huge_log_are_read_from_its_end(
    marked: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of ten gigabytes less than four megabytes are read; of a line without an end a part is shown."""
    path = os.path.join(marked.worker_logs(1, 0), "stdout.log")
    os.truncate(path, 10 << 30)
    with open(path, "ab") as file:
        file.write(b"\nlast but one\nlast\n")
    before = bytes_read()
    assert 0 == app.run(["logs", marked.root, "--rank", "0", "-n", "2"])
    assert bytes_read() - before < 4 << 20
    assert ["[1:rank 0] last but one", "[1:rank 0] last"] == capfd.readouterr().out.splitlines()
    assert 0 == app.run(["logs", marked.root, "--rank", "0", "-n", "3"])
    assert bytes_read() - before < 80 << 20
    assert len(capfd.readouterr().out) < 2 << 20


def bytes_read() -> int:
    """Return how much this process has read so far [bytes]."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--attempt", "0"], "--attempt: '0' is no round"),
        (["--attempt", "latest"], "--attempt: 'latest' is no round"),
        (["--attempt", "7"], "--attempt: no log matches --attempt 7"),
        (["--since", "yesterday"], "--since: 'yesterday' is no time"),
        (["--since", "2026-13-01"], "--since: '2026-13-01' is no time"),
        (["--grep", "a("], "--grep: 'a(' is no regular expression"),
        (["--first-failure", "--attempt", "7"], "--first-failure: no worker of toy has failed in round 7"),
        (["--json", "-f"], "--json: --json is one document"),
    ],
)
def test_a_choice_that_is_none_is_refused(
    marked: RunPaths, capfd: pytest.CaptureFixture[str], flags: list[str], named: str
) -> None:
    """The error names the flag, the value and the fix."""
    assert 2 == app.run(["logs", marked.root, *flags])
    said = capfd.readouterr()
    assert "" == said.out
    assert f"error: {named}" in said.err
    assert "\n  fix: " in said.err


@pytest.mark.parametrize("flags", [["--rank", "9"], ["--node", "n3"], ["--attempt", "1", "--rank", "9"]])
def test_a_rank_or_node_that_is_none_is_refused_with_those_there_are(
    marked: RunPaths, capfd: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """Of the round that is looked at."""
    assert 2 == app.run(["logs", marked.root, *flags])
    assert "rounds with logs: 1; round 1 had ranks 0 to 3 on n1, n2; files are in" in capfd.readouterr().err
