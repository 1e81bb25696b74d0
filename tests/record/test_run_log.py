"""Reading and writing the journal, alone and against others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hpc_elastic.errors import RendezvousStateError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Entry, Epoch
from hpc_elastic.record.run_log import LOG, RunLog, open_log, read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import after, crash, formed, start

REPOSITORY = Path(__file__).parents[2]
WRITERS = 4
COMMITS = 25


def test_what_is_committed_is_read(memory_store: MemoryStore, clock: FakeClock) -> None:
    """Another reader sees what one has committed, and knows who wrote it and when."""
    writer = RunLog(memory_store, clock, "n1")
    reader = RunLog(memory_store, clock, "n2")
    assert after(start()) == writer.commit(lambda _: start())
    assert after(start()) == reader.refresh()
    assert after(start(), formed(1)) == reader.commit(lambda _: formed(1))
    assert after(start(), formed(1)) == writer.refresh()


def test_what_does_not_fit_is_not_written(memory_store: MemoryStore, clock: FakeClock) -> None:
    """An entry that would change nothing costs no record."""
    log = RunLog(memory_store, clock, "n1")
    log.commit(lambda _: start())
    state = log.commit(lambda _: start())
    assert 1 == state.last == len(memory_store.read_after(LOG, 0))


def test_the_choice_may_be_nothing(memory_store: MemoryStore, clock: FakeClock) -> None:
    """Who finds nothing to add adds nothing."""
    assert RunState() == RunLog(memory_store, clock, "n1").commit(lambda _: None)


def test_the_choice_is_made_in_the_newest_state(memory_store: MemoryStore, clock: FakeClock) -> None:
    """What others have written meanwhile is known to the chooser."""
    late, other = RunLog(memory_store, clock, "n1"), RunLog(memory_store, clock, "n2")
    other.commit(lambda _: start())
    other.commit(lambda _: formed(1))
    asked: list[RunState] = []

    def choose(state: RunState) -> Entry:
        asked.append(state)
        return crash(state.rounds)

    late.commit(choose)
    assert [after(start(), formed(1))] == asked


def test_a_lost_race_is_chosen_again(memory_store: MemoryStore, clock: FakeClock) -> None:
    """Who loses the number to somebody else chooses again in the state that made."""
    mine, other = RunLog(memory_store, clock, "n1"), RunLog(memory_store, clock, "n2")
    mine.commit(lambda _: start())
    asked: list[int] = []

    def choose(state: RunState) -> Entry:
        asked.append(state.last)
        if len(asked) == 1:
            other.commit(lambda _: formed(1))
        return formed(1, ("n1",))

    state = mine.commit(choose)
    assert [1, 2] == asked
    assert formed(1) == state.round


class _AlwaysFirst(MemoryStore):
    """A store in which somebody else is always first."""

    def append(self, _log: str, _number: int, _value: bytes) -> bool:
        """Lose."""
        return False


def test_losing_for_ever_is_an_error(clock: FakeClock) -> None:
    """A commit ends, even if it never wins."""
    with pytest.raises(StoreError, match="attempts to add journal record 1 were lost"):
        RunLog(_AlwaysFirst(), clock, "n1").commit(lambda _: start())


def test_damage_is_named(memory_store: MemoryStore, clock: FakeClock) -> None:
    """A damaged record stops the reader with its number."""
    log = RunLog(memory_store, clock, "n1")
    log.commit(lambda _: start())
    memory_store.append(LOG, 2, b"{")
    with pytest.raises(RendezvousStateError, match="record 2"):
        log.refresh()


def test_commands_read_a_run_directory(run_paths: RunPaths) -> None:
    """A command on a login node sees state and records of a run."""
    assert RunState() == read_state(run_paths)
    open_log(run_paths, "login").commit(lambda _: start())
    assert after(start()) == read_state(run_paths)
    (record,) = read_records(run_paths)
    assert (1, "login", start()) == (record.number, record.by, record.entry)


def test_nothing_is_written_into_a_gap(run_paths: RunPaths) -> None:
    """Where a record was removed a new one would take its number, so neither readers nor writers go on."""
    log = open_log(run_paths, "login")
    for entry in (start(Epoch(0, 0, restart, 0)) for restart in range(4)):
        log.commit(lambda _, entry=entry: entry)  # type: ignore[misc]
    gone = os.path.join(run_paths.root, LOG, "000000", "00000002")
    os.unlink(gone)
    with pytest.raises(RendezvousStateError, match=f"{gone}: journal record 2 was removed"):
        read_records(run_paths)
    with pytest.raises(RendezvousStateError, match="was removed"):
        open_log(run_paths, "login").commit(lambda _: start(Epoch(0, 0, 9, 0)))
    assert not os.path.exists(gone)


WRITER = """
import sys
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.record.run_log import open_log
log = open_log(RunPaths(sys.argv[1]), sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    log.commit(lambda state: EpochStarted(Epoch(0, 0, state.epoch.restart + 1, 0), "", ()))
"""


def test_contending_processes_lose_nothing(run_paths: RunPaths) -> None:
    """Every commit of every process is one record: none is lost, none is doubled."""
    open_log(run_paths, "login").commit(lambda _: start())
    writers = [_start_writer(run_paths.root, f"w{i}") for i in range(WRITERS)]
    for writer in writers:
        assert writer.stdout is not None
        assert "ready\n" == writer.stdout.readline()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert 0 == writer.returncode
    records = read_records(run_paths)
    assert list(range(1, WRITERS * COMMITS + 2)) == [record.number for record in records]
    assert {f"w{i}": COMMITS for i in range(WRITERS)} == Counter(record.by for record in records[1:])
    assert Epoch(0, 0, WRITERS * COMMITS, 0) == read_state(run_paths).epoch


def _start_writer(root: str, name: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, root, name, str(COMMITS)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(argv, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
