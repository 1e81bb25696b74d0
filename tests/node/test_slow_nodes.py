"""Slow nodes: the rule, the measurement on real channels, and the record of real agents."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.node.hangs.paces import PacePlace, PaceWatch
from hpc_elastic.node.hangs.slow_rules import MARGIN, NodePace, SlowWatch, parse_pace, unusual
from hpc_elastic.record.journal import Entry, Epoch, EpochStarted, Member, NodeSlow, Record, RoundFormed
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.node_status import node_facts
from hpc_elastic.report.timeline import timeline
from hpc_elastic.slurm.nodes.ledger_rules import standings
from hpc_elastic.store.node_events import Fault
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.worker.channel import COMPUTE, Channel
from hpc_elastic.worker.progress import WorkerProgress
from tests.node.agents import MakeAgents

EPOCH = Epoch(0, 0, 0, 0)
times = st.floats(0.001, 1000.0)


def paces(*seconds: float, window: int = 1, before: float | None = None) -> list[NodePace]:
    """Return one measurement of each node."""
    return [NodePace(f"n{place}", 1, window, each, place, before) for place, each in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ((), ()),
        ((1.0,), ()),
        ((1.0, 5.0), ()),
        ((1.0, 1.0, 1.0), ()),
        ((1.0, 1.0, 1.3), ("n2",)),
        ((1.0, 1.0, 1.19), ()),
        ((1.0, 1.01, 0.99, 1.02, 1.5), ("n4",)),
        ((1.0, 1.3, 0.7, 1.6, 1.9), ()),
        ((1.0,) * 62 + (2.0, 3.0), ("n62", "n63")),
        ((1.0, 1.0, 0.2), ()),
    ],
    ids=["none", "one", "two", "equal", "far", "near", "noise", "wide", "two of many", "a fast one"],
)
def test_a_node_is_unusual_by_median_and_mad(seconds: tuple[float, ...], slow: tuple[str, ...]) -> None:
    """It takes a fifth more than the median, and its distance stands out of those of the others."""
    assert set(slow) == unusual(paces(*seconds))


def test_of_two_nodes_the_one_is_slow_that_was_faster_before() -> None:
    """Else it is as likely that the other one is fast."""
    assert {"n1"} == unusual(paces(1.0, 1.5, before=1.0))
    assert frozenset() == unusual(paces(1.0, 1.5, before=1.4))


@given(st.lists(times, min_size=3, max_size=40))
def test_at_most_half_of_the_nodes_are_unusual(seconds: list[float]) -> None:
    """Each of them takes longer than each of the others, and a fifth more than the median."""
    found = unusual(paces(*seconds))
    slow = [each for place, each in enumerate(seconds) if f"n{place}" in found]
    others = [each for place, each in enumerate(seconds) if f"n{place}" not in found]
    assert 2 * len(slow) <= len(seconds)
    assert not slow or min(slow) > max(others)
    assert not slow or min(slow) >= MARGIN * sorted(seconds)[(len(seconds) - 1) // 2]


@given(st.lists(times, min_size=3, max_size=40), st.sampled_from([0.25, 2.0, 64.0]), st.randoms())
def test_neither_unit_nor_order_matters(seconds: list[float], unit: float, shuffle: object) -> None:
    """The same nodes are found in milliseconds, and in any order."""
    found = unusual(paces(*seconds))
    others = paces(*(unit * each for each in seconds))
    getattr(shuffle, "shuffle")(others)  # noqa: B009 - hypothesis' type is not exported
    assert found == unusual(others)


@given(st.lists(times, min_size=3, max_size=40), st.floats(1.0, 100.0))
def test_a_slow_node_that_gets_slower_stays_slow(seconds: list[float], factor: float) -> None:
    """The time of the slowest one changes neither the median nor the distances that count."""
    place = max(range(len(seconds)), key=seconds.__getitem__)
    before = unusual(paces(*seconds))
    seconds[place] *= factor
    assert f"n{place}" not in before or f"n{place}" in unusual(paces(*seconds))


def test_four_of_five_comparisons_make_a_node_slow() -> None:
    """One save or one burst does not, and an old measurement does not count twice."""
    watch = SlowWatch()
    usual, late = (1.0, 1.0, 1.0), (1.0, 1.0, 2.0)
    seen = [
        watch.note(paces(*each, window=number)) for number, each in enumerate((late,) * 3 + (usual, late), 1)
    ]
    assert [[], [], [], [], ["n2"]] == [[slow.pace.node for slow in each] for each in seen]
    assert 1.0 == seen[-1][0].usual_s
    watch = SlowWatch()
    assert [[]] * 5 == [watch.note(paces(*late, window=1)) for _ in range(5)]


@pytest.mark.parametrize("before", [None, 1.25])
def test_the_name_of_a_file_has_the_measurement(before: float | None) -> None:
    """A node's name may have dots; other names are no measurements."""
    pace = NodePace("node1.site", 3, 7, 1.5, 12, before)
    assert pace == parse_pace(pace.text())
    assert [None] * 3 == [parse_pace(name) for name in ("node1", "n+1+2", "a/b+1+1+1+1")]


@dataclass
class Round:
    """The nodes of a round, with real channels and names in a directory."""

    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    found: list[NodeSlow] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start three nodes of one worker each."""
        self.directory.mkdir()
        self.channels = [Channel.create(str(self.directory / f"channel{node}")) for node in range(3)]
        self.workers = [WorkerProgress({}, Channel.open(each.path), self.clock) for each in self.channels]
        where = str(self.directory / "paces")
        self.watches = [
            PaceWatch(PacePlace(where, f"n{node}", 2, node, node == 0), [channel], self.found.append, 0.0)
            for node, channel in enumerate(self.channels)
        ]
        self.step = 0

    def train(self, seconds: float, own: tuple[float, float, float] | None = None) -> None:
        """Take steps together for so long [s], of one second each.

        Args:
            seconds: how long.
            own: the part of a step that each worker computes alone [s]; None: it does not say.
        """
        for _ in range(round(seconds)):
            self.step += 1
            began = self.clock.monotonic()
            for worker, part in zip(self.workers, own or (), strict=False):
                with worker.section(COMPUTE):
                    self.clock.advance(part)
            self.clock.advance(max(0.0, began + 1.0 - self.clock.monotonic()))
            for worker in self.workers:
                worker.tick(self.step)
            for watch in reversed(self.watches):
                watch.look(self.clock.monotonic())


def test_a_node_that_computes_for_longer_is_found(tmp_path: Path) -> None:
    """Though all take their steps together; it is told once, with its own past, and files do not add up."""
    run = Round(tmp_path / "run")
    run.train(600, own=(0.1, 0.1, 0.1))
    assert [] == run.found
    run.train(600, own=(0.1, 0.1, 0.4))
    (slow,) = run.found
    assert (2, "n2", 2) == (slow.number, slow.node, slow.rank)
    assert (0.4, 0.1, 0.1) == tuple(
        round(each or 0.0, 3) for each in (slow.step_s, slow.usual_s, slow.before_s)
    )
    assert 3 == len(list((run.directory / "paces").iterdir()))
    for watch in run.watches:
        watch.close()
    assert [] == list((run.directory / "paces").iterdir())


@pytest.mark.timeout(120)
def test_a_pipe_in_the_place_of_a_measurement_is_not_waited_for(tmp_path: Path) -> None:
    """The agent goes on, and tells its next measurement."""
    nodes = Round(tmp_path / "round")
    place = nodes.directory / "paces"
    place.mkdir()
    for node in range(3):
        os.mkfifo(place / NodePace(f"n{node}", 2, 1, 0.1, node).text())
    nodes.train(130, (0.1, 0.1, 0.1))
    told = {NodePace(f"n{node}", 2, 2, 0.1, node).text() for node in range(3)}
    assert told == {path.name for path in place.iterdir() if path.is_file()}


def test_steps_that_are_taken_together_name_no_node(tmp_path: Path) -> None:
    """All ranks wait for the slow one: without a section for its own work it cannot be told."""
    run = Round(tmp_path / "run")
    run.train(900)
    assert [] == run.found


def test_a_slow_node_is_shown_and_remembered_and_never_left_out() -> None:
    """Status, timeline and ledger name it; a hundred of these events make no node suspect."""
    member = Member("n1.1", "n1", 1)
    formed = RoundFormed(1, EPOCH, (member, Member("n2.1", "n2", 1)), "n1", 1234, None)
    slow = NodeSlow(1, "n2", 1, 1.5, 1.0, 1.02)
    entries: list[Entry] = [EpochStarted(EPOCH, "7", ("n1", "n2")), formed, slow, slow]
    records = [Record(number, 100.0, "n1", entry) for number, entry in enumerate(entries, 1)]
    text = "a step of rank 1 takes 1.5 s, on most nodes 1 s; 1.02 s there before"
    assert [("slow", f"n2: {text}")] == node_facts(fold(RunState(), records), {})
    assert [f"n2 is slow: {text}"] == [moment.text for moment in timeline(records)][2:]
    (blamed,) = node_faults(records, "toy")
    assert ("n2", Fault.SLOW, text) == (blamed.event.host, blamed.event.fault, blamed.event.detail)
    (standing,) = standings([blamed.event._replace(key=str(number)) for number in range(100)], 100.0)
    assert (False, 0.0) == (standing.is_suspect, standing.score)


TRAIN = """
import time
from hpc_elastic import worker
step, place = 0, os.path.join(worker.run_dir(), "paces")
while not os.path.isdir(place) or len({name.partition("+")[0] for name in os.listdir(place)}) < 2:
    step += 1
    worker.tick(step)
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_agents_measure_and_take_their_files_away(make: MakeAgents) -> None:
    """The workers end once they see the measurements of both nodes."""
    agents = make(TRAIN)
    for node in range(2):
        agents.start(node, "--nnodes", "2", "--nproc-per-node", "1")
    assert [0, 0] == [agents.code(node) for node in range(2)]
    assert [] == list(Path(agents.paths.paces).iterdir())
