"""Processes that use the same key-value store at the same time lose nothing."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_elastic.store.kv.store import open_store

REPOSITORY = Path(__file__).parents[2]
START = """
import os, sys
from hpc_elastic.store import open_store
kv, me = open_store(sys.argv[1], "scope", lock=sys.argv[3] == "lock"), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
"""
ADD = "print(*[kv.add('n', 1) for _ in range(50)])"
COUNT_BY_WORDS = """
won = 0
while won < 20:
    seen = kv.get("words").split()
    mine = b" ".join([*seen, f"{me}.{won}".encode()])
    won += kv.compare_set("words", b" ".join(seen), mine) == mine
"""
GET = "print(kv.get('late').decode(), flush=True); kv.wait(['a', 'b']); print(kv.multi_get(['a', 'b']))"
FORK = """
children = [os.fork() for _ in range(2)]
kv.add("n", 1)
for child in filter(None, children):
    os.waitpid(child, 0)
"""


def start(root: Path, name: object, program: str, lock: str = "lock") -> subprocess.Popen[str]:
    """Start a process and wait until it has opened the store."""
    argv = [sys.executable, "-c", START + program, str(root), str(name), lock]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(argv, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert "ready\n" == process.stdout.readline()
    return process


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Let all processes go on at once; return what they print."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in processes]
    assert [0] * len(processes) == [process.returncode for process in processes]
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["lock", "no lock"])
def test_no_addition_is_lost(tmp_path: Path, lock: str) -> None:
    """Eight processes that count up the same key get each number once, in their order."""
    printed = finish([start(tmp_path, number, ADD, lock) for number in range(8)])
    counts = [[int(number) for number in line.split()] for line in printed]
    assert all(sorted(mine) == mine for mine in counts)
    assert list(range(1, 401)) == sorted(number for mine in counts for number in mine)
    assert b"400" == open_store(tmp_path, "scope").get("n")


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["lock", "no lock"])
def test_no_comparison_is_wrong(tmp_path: Path, lock: str) -> None:
    """Every comparison that one process won is in what the others have built on it."""
    open_store(tmp_path, "scope").set("words", "")
    finish([start(tmp_path, number, COUNT_BY_WORDS, lock) for number in range(4)])
    words = open_store(tmp_path, "scope").get("words").decode().split()
    assert sorted(f"{me}.{count}" for me in range(4) for count in range(20)) == sorted(words)


def test_a_reader_in_another_process_is_woken(tmp_path: Path) -> None:
    """A process that waits for keys gets them when this one sets them."""
    reader = start(tmp_path, "reader", GET)
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write("go\n")
    reader.stdin.flush()
    kv = open_store(tmp_path, "scope")
    kv.set("late", "at last")
    assert "at last\n" == reader.stdout.readline()
    kv.set("b", "2")
    kv.set("a", "1")
    assert "[b'1', b'2']\n" == reader.communicate()[0]


def test_threads_share_a_client(tmp_path: Path) -> None:
    """Threads that use one client are writers of their own: nothing is lost or counted twice."""
    kv = open_store(tmp_path, "scope")
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: kv.add("n", 1), range(60)))
    assert list(range(1, 61)) == sorted(counts)


@pytest.mark.slow
def test_a_stuck_lock_only_costs_time(tmp_path: Path) -> None:
    """When somebody holds the lock for ever, writers go on without it and lose nothing."""
    kv = open_store(tmp_path, "scope")
    with open(tmp_path / "kv" / "scope" / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        printed = finish([start(tmp_path, number, ADD) for number in range(4)])
    assert list(range(1, 201)) == sorted(int(number) for line in printed for number in line.split())
    assert b"200" == kv.get("n")


def test_forked_children_are_other_writers(tmp_path: Path) -> None:
    """Children that inherit an opened store write for themselves."""
    finish([start(tmp_path, "parent", FORK)])
    assert b"4" == open_store(tmp_path, "scope").get("n")
