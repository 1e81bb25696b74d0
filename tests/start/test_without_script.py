"""Agents in the place of a batch script whose node is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_elastic.ids import Env
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, TooFewError
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.paths import RunPaths
from hpc_elastic.start import without_script
from hpc_elastic.start.without_script import place_before_a_round
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import formed, start
from tests.meet.one_node import SETTINGS, MakeNode, node_maker
from tests.slurm.stand_in import FakeJob


class Opened(NamedTuple):
    """The part of an agent that tells of its run."""

    run: SharedRun


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
