"""Agents in the place of a batch script whose node is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_elastic.errors import StoreError, TakenOverError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, TooFewError
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause, Decision, Drained, RunEnded
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.end import batch_host
from hpc_elastic.start import without_script
from hpc_elastic.start.without_script import finish_in_its_place, place_before_a_round, record_takeover
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.trust import HeldRoot
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, formed, loss, start
from tests.meet.one_node import SETTINGS, MakeNode, node_maker
from tests.slurm.stand_in import FakeJob


class Signalled(NamedTuple):
    """The signals that have come."""

    last_signal: int | None = None


class Opened(NamedTuple):
    """The part of an agent that tells of its run."""

    run: Any
    loop: Signalled = Signalled()
    root: HeldRoot | None = None
    log: Any = None


JOB = ("n1", "n2", "n3")
ALL_OF_THEM = SETTINGS._replace(min_nodes=3)


@pytest.fixture
def node(memory_store: MemoryStore, clock: FakeClock) -> MakeNode:
    """Return a function that makes the rendezvous of a node."""
    return node_maker(memory_store, clock)


def _wait_in_vain(handler: SharedFsRendezvous) -> None:
    with pytest.raises(TooFewError):
        handler.next_rendezvous()


def test_a_batch_host_that_never_came_has_successors(node: MakeNode, clock: FakeClock) -> None:
    """They are counted without it; while its own agent beats, or a round has been formed, there is none."""
    first, second, third = (node(name, expected=JOB, batch_host="n1", settings=ALL_OF_THEM) for name in JOB)
    second._enter()
    _wait_in_vain(third)
    second.run.refresh()
    assert [0, 1] == [place_before_a_round(one.run) for one in (second, third)]
    first._enter()
    third._look_again()
    assert None is place_before_a_round(third.run)
    assert None is place_before_a_round(first.run)


def test_a_batch_host_whose_agent_has_left_has_none(node: MakeNode) -> None:
    """Its batch script decides."""
    first, second = (node(name, expected=JOB, batch_host="n1", settings=ALL_OF_THEM) for name in JOB[:2])
    _wait_in_vain(first)
    first.run.membership.leave(0)
    _wait_in_vain(second)
    assert None is place_before_a_round(second.run)


def test_a_node_that_cannot_read_the_directory_takes_nobodys_place(node: MakeNode) -> None:
    """The batch host may have beaten all the time."""
    second, third = (node(name, expected=JOB, batch_host="n1", settings=ALL_OF_THEM) for name in JOB[1:])
    second._enter()
    _wait_in_vain(third)
    assert 1 == place_before_a_round(third.run)
    third.run.note_blindness()
    assert None is place_before_a_round(third.run)


def test_eight_nodes_ask_slurm_whether_the_script_was_killed(
    node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that is told to leave before anybody knows why; a thousand would be a burden."""
    job = FakeJob(tmp_path / "slurm")
    for name, value in {"PATH": str(job.bin), "SLURM_JOB_ID": "7", Env.SUBMISSION: "0"}.items():
        monkeypatch.setenv(name, value)
    names = [f"n{number}" for number in range(10)]
    node("n0").run.commit(start(expected=tuple(names)))
    node("n0").run.commit(formed(1, names))
    asked = []
    for name in names[6:]:
        run = node(name, expected=tuple(names), batch_host="n0").run
        run.refresh()
        before = len(job.questions)
        opened: Any = Opened(run)
        without_script._finish_job(RunPaths(tmp_path), opened, None, is_told_to_leave=True)
        asked.append(len(job.questions) > before)
    assert [True, True, False, False] == asked


def test_a_round_without_the_batch_host_has_none(node: MakeNode) -> None:
    """The loss of a member is recorded, and that decides."""
    alone = node("n2", expected=JOB, batch_host="n1")
    assert 1 == alone.next_rendezvous().world_size
    assert None is place_before_a_round(alone.run)


def drained(cause: Cause) -> Drained:
    """Return the end of a start."""
    return Drained(E0, cause, None, "")


@pytest.mark.parametrize(
    ("ending", "is_in_vain"),
    [
        (None, False),
        (drained(Cause.PREEMPTION), False),
        (drained(Cause.JOIN_TIMEOUT), True),
    ],
)
def test_a_job_is_finished_from_here_where_all_have_waited_in_vain(
    node: MakeNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: Drained | None,
    *,
    is_in_vain: bool,
) -> None:
    """For a batch host that never came; after another end the record of the round's members decides."""
    job = FakeJob(tmp_path / "slurm")
    for name, value in {"PATH": str(job.bin), "SLURM_JOB_ID": "7", Env.SUBMISSION: "0"}.items():
        monkeypatch.setenv(name, value)
    second = node("n2", expected=JOB, batch_host="n1", settings=ALL_OF_THEM)
    second._enter()
    second.run.commit(start(expected=JOB))
    if ending is not None:
        second.run.commit(ending)
    second.run.refresh()
    assert 0 == place_before_a_round(second.run)
    said: list[int | None] = []
    monkeypatch.setattr(without_script, "_finish_job", lambda _, __, place, **___: said.append(place))
    opened: Any = Opened(second.run)
    finish_in_its_place(RunPaths(tmp_path), None, opened, ExitCode.REQUEUE)
    assert [0 if is_in_vain else None] == said


@pytest.mark.parametrize(
    ("exit_code", "number", "is_asked"),
    [
        (ExitCode.REQUEUE, signal.SIGTERM, True),
        (ExitCode.REQUEUE, None, False),
        (ExitCode.OK, signal.SIGTERM, False),
    ],
)
def test_a_task_asks_whether_its_script_was_killed(  # noqa: PLR0913 - a row of the table
    node: MakeNode,
    run_paths: RunPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: int,
    number: int | None,
    *,
    is_asked: bool,
) -> None:
    """If it was told to leave by a signal, and its start is not over otherwise."""
    job = FakeJob(tmp_path / "slurm")
    for name, value in {"PATH": str(job.bin), "SLURM_JOB_ID": "8", Env.SUBMISSION: "0"}.items():
        monkeypatch.setenv(name, value)
    opened: Any = Opened(node("n1").run, Signalled(number))
    finish_in_its_place(run_paths, TaskStart("7_1", 0, 0), opened, exit_code)
    assert is_asked == bool(job.questions)


def test_nobody_stands_in_for_a_users_own_script(
    node: MakeNode, run_paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm is not even asked."""
    job = FakeJob(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(job.bin))
    monkeypatch.delenv(Env.SUBMISSION, raising=False)
    opened: Any = Opened(node("n1").run, Signalled(signal.SIGTERM))
    finish_in_its_place(run_paths, TaskStart("7_1", 0, 0), opened, ExitCode.REQUEUE)
    assert [] == job.questions


@pytest.mark.parametrize("is_taken", [True, False])
def test_the_end_of_a_run_is_written_where_its_directory_is_now(
    node: MakeNode, run_paths: RunPaths, *, is_taken: bool
) -> None:
    """If another one took its place: the reason is there when it comes back."""
    root = HeldRoot(run_paths.root)
    moved = RunPaths(f"{run_paths.root}-moved")
    os.rename(run_paths.root, moved.root)
    os.mkdir(run_paths.root, 0o700)
    reason = "another directory is in its place"
    error = TakenOverError(reason) if is_taken else StoreError(reason)
    opened: Any = Opened(node("n1").run, root=root)
    for _ in range(2):
        record_takeover(opened, Outcome(ExitCode.FAILED, reason, error=error))
    root.close()
    state = read_state(moved)
    assert [] == os.listdir(run_paths.root)
    if not is_taken:
        assert state.ending is None
        return
    assert RunEnded(Decision.FAILED, ExitCode.FAILED, reason, None) == state.ending
    assert 1 == len(read_records(moved))


@pytest.fixture
def requeued(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the places from which a job was requeued in the place of its script; signals come back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    places: list[int] = []
    monkeypatch.setattr(batch_host, "requeue_in_its_place", lambda _, __, place, *___: places.append(place))
    yield places
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("place", "lost", "unfit", "expected"),
    [
        (0, (), {}, [0]),  # the first round was waited for in vain
        (3, (), {}, [3]),
        (None, ("n1",), {}, [1]),
        (None, (), {}, []),
        (None, ("n3",), {}, []),
        (None, ("n1",), {"n1": "no driver"}, []),  # its script goes on beside an unfit agent
    ],
)
def test_a_job_is_requeued_where_its_batch_host_is_lost(  # noqa: PLR0913 - a row of the table
    node: MakeNode,
    run_paths: RunPaths,
    requeued: list[int],
    place: int | None,
    lost: tuple[str, ...],
    unfit: Mapping[str, str],
    expected: list[int],
) -> None:
    """From its place in the round; the requeue ends its process, which is then no failure."""
    second = node("n2", expected=JOB, batch_host="n1").run
    second.commit(start(expected=JOB))
    second.commit(formed(1, JOB))
    if lost:
        second.commit(loss(1, *lost))
    second.refresh()
    state = second.state._replace(batch_host="n1", unfit=unfit)
    said = Said()
    opened: Any = Opened(_WithState(second, state), log=said)
    without_script._finish_job(run_paths, opened, place, is_told_to_leave=False)
    assert expected == requeued
    assert bool(expected) == any(
        "the batch host is lost: the job is requeued from here" in one for one in said.lines
    )
    is_ignored = [signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGTERM, signal.SIGHUP)]
    assert [bool(expected)] * 2 == is_ignored


class Said:
    """The log of an agent, as far as its lines are read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """Note a line."""
        self.lines.append(line)


class _WithState:
    """A run whose records say more than a test has written."""

    def __init__(self, run: SharedRun, state: RunState) -> None:
        self.state = state
        self.place_among_survivors = run.place_among_survivors
