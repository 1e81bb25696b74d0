"""Workers that tell no steps: what counts as a sign of life, and what becomes of those without any."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.node.decision import Hang
from hpc_elastic.node.hangs.activity_rules import (
    Activity,
    NodeActivity,
    Reading,
    noted,
    parse_activity,
)
from hpc_elastic.node.listeners.gpu_sampler import GpuSampler, SampledNode
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.workers.process_facts import TreeUse, tree_use
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Epoch, Member, RoundEnded, RoundFormed
from hpc_elastic.report.activity import activity_texts
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until
from tests.node.agents import MakeAgents
from tests.node.hang_world import World, make_world

USE = TreeUse(frozenset({7, 8}), 100.0, 5000)
BEFORE = Activity(Reading(300, USE), output_at=1000.0, cpu_at=1000.0)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("reading", "output_at", "cpu_at"),
    [
        (Reading(300, USE), 1000.0, 1000.0),
        (Reading(301, USE), 1100.0, 1000.0),
        (Reading(0, USE), 1100.0, 1000.0),  # its log was emptied
        (Reading(300, USE._replace(cpu_s=101.4)), 1000.0, 1000.0),  # threads that only wake up
        (Reading(300, USE._replace(cpu_s=101.6)), 1000.0, 1100.0),
        (Reading(300, USE._replace(cpu_s=99.0)), 1000.0, 1100.0),  # a child has ended
        (Reading(300, USE._replace(pids=frozenset({7, 9}))), 1000.0, 1100.0),
        (Reading(300, USE._replace(moved=5000 + MIB - 1)), 1000.0, 1000.0),
        (Reading(300, USE._replace(moved=5000 + MIB)), 1000.0, 1100.0),
    ],
)
def test_what_counts_as_activity(reading: Reading, output_at: float, cpu_at: float) -> None:
    """Output of any size; a hundredth of a CPU, data and other processes; not what wakes up now and then."""
    found = noted(BEFORE, reading, 1100.0)
    assert (output_at, cpu_at) == (found.output_at, found.cpu_at)


def test_little_activity_adds_up() -> None:
    """A worker with two hundredths of a CPU is active, however often it is looked at."""
    known = BEFORE
    for second in range(1, 101):
        known = noted(known, Reading(300, USE._replace(cpu_s=100.0 + 0.02 * second)), 1000.0 + second)
    assert known.cpu_at > 1040.0


def test_output_that_cannot_be_seen_is_no_sign() -> None:
    """Then the CPU time alone counts."""
    known = Activity(Reading(None, USE), output_at=1000.0, cpu_at=900.0)
    assert 900.0 == known.at
    assert 1000.0 == BEFORE._replace(cpu_at=900.0).at


def test_a_tree_of_processes_is_measured(tmp_path: Path) -> None:
    """The CPU time of a child counts, while it lives and after it."""
    before = tree_use(os.getpid())
    sum(range(3_000_000))
    wait_until(lambda: tree_use(os.getpid()).cpu_s > before.cpu_s, "CPU time")
    assert os.getpid() in before.pids
    (tmp_path / "data").write_bytes(bytes(MIB))
    assert tree_use(os.getpid()).moved - before.moved >= MIB


TOLD = NodeActivity("n1.gpu", 3, 1_700_000_000, 5, None, 1900, 12, 3, None)


def test_the_activity_of_a_node_is_told_in_a_name() -> None:
    """What is not known as well; foreign names are none."""
    for one in (TOLD, TOLD._replace(output_s=7, gpu_s=0, newest_output_s=None)):
        assert one == parse_activity(one.text())
    for name in ("", "x", "n1+3+5+1+2", "n1+3+5+1+-+-+-+-+-", "n1+3+5+1+-+2+-+2+-+9", "a/b+3+5+1+-+2+-+2+-"):
        assert parse_activity(name) is None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a node whose workers tell no steps and may be silent for ten seconds."""
    made = make_world(tmp_path, HangOptions(silence=10.0))
    yield made
    made.group.context.close(timeout=0)


def wait_s(world: World, seconds: int) -> Hang:
    """Look each second while nobody tells a step."""
    for _ in range(seconds):
        world.clock.advance(1.0)
        found = world.look()
        if found is not Hang.NONE:
            return found
    return Hang.NONE


def test_workers_without_a_sign_are_suspected(world: World) -> None:
    """After their time, both in one suspicion; then the round ends as for any hang."""
    assert wait_s(world, 9) is Hang.NONE
    assert wait_s(world, 1) is Hang.SUSPECTED
    assert "ranks 0, 1: no output, no CPU time and no GPU use for 10 s (limit 10 s)" == world.hangs.detail
    world.hangs.ask()
    world.other_writes()
    assert world.look() is Hang.PROVEN


def test_a_worker_that_reads_is_not_suspected(world: World) -> None:
    """The other one is."""
    assert wait_s(world, 6) is Hang.NONE
    world.feed(0)
    assert wait_s(world, 4) is Hang.SUSPECTED
    assert world.hangs.detail.startswith("rank 1: no output")


def test_a_worker_that_ticks_is_judged_by_its_steps(world: World) -> None:
    """However silent it is."""
    world.tick(0, 1)
    assert wait_s(world, 30) is Hang.NONE


def test_a_time_in_which_nobody_looked_does_not_count(world: World) -> None:
    """The node may have stood still with its workers."""
    assert wait_s(world, 6) is Hang.NONE
    world.clock.advance(600.0)
    assert world.look() is Hang.NONE
    assert wait_s(world, 9) is Hang.NONE
    assert wait_s(world, 1) is Hang.SUSPECTED


def test_the_signs_are_told_for_status(world: World) -> None:
    """Once a minute, in one file, which goes with the round."""
    activity = world.activity
    assert activity is not None
    folder = Path(world.parts.paths.activity)
    folder.parent.mkdir(exist_ok=True)
    assert not folder.exists()
    world.clock.advance(31.0)
    activity.look(world.clock.monotonic())
    (name,) = os.listdir(folder)
    told = parse_activity(name)
    assert told is not None
    assert ("n1", 1, 0, None, None) == (told.node, told.round, told.rank, told.output_s, told.gpu_s)
    world.clock.advance(61.0)
    activity.look(world.clock.monotonic())
    assert 1 == len(os.listdir(folder))
    activity.close()
    assert [] == os.listdir(folder)


@pytest.mark.parametrize(
    ("line", "idle_s"),
    [
        ("0, GPU-a, 0, 10, 100", 5.0),
        ("0, GPU-a, 7, 10, 100", 0.0),
        ("0, GPU-a, [N/A], 10, 100", 0.0),
        ("", 0.0),
    ],
)
def test_a_gpu_that_works_or_does_not_tell_is_not_idle(
    tmp_path: Path, line: str, idle_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that is seen without work is."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(0o755)
    clock = FakeClock()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    monkeypatch.setenv("PATH", environ["PATH"])
    place = SampledNode("n1", str(tmp_path / "gpus" / "n1"), str(tmp_path), environ, clock, lambda _: None)
    sampler = GpuSampler(1000.0, place)
    clock.advance(5.0)
    sampler.look(clock.monotonic())
    wait_until(lambda: bool(sampler.look(clock.monotonic())) or not sampler.pids, "the answer")
    assert idle_s == clock.monotonic() - sampler.idle_since


@pytest.mark.parametrize(
    ("program", "has_gpus", "idle_s"), [(True, False, 0.0), (False, True, 0.0), (False, False, 100.0)]
)
def test_gpus_whose_use_is_not_known_are_not_idle(
    tmp_path: Path, *, program: bool, has_gpus: bool, idle_s: float
) -> None:
    """A driver that fails, or none where there are GPUs; a node without both has none that work."""
    if program:
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    clock = FakeClock()
    environ = {"PATH": str(tmp_path)}
    place = SampledNode("n1", "none", str(tmp_path), environ, clock, lambda _: None, has_gpus=has_gpus)
    sampler = GpuSampler(1.0, place)

    def is_off() -> bool:
        clock.advance(2.0)
        sampler.look(clock.monotonic())
        return sampler.is_off

    wait_until(is_off, "the end of the samples")
    sampler.look(clock.monotonic())
    before = clock.monotonic() - sampler.idle_since
    clock.advance(100.0)
    sampler.look(clock.monotonic())
    assert idle_s == clock.monotonic() - sampler.idle_since - before


ROUND = RoundFormed(3, Epoch(0, 0, 0, 0), (Member("n1.1", "n1", 4), Member("n2.1", "n2", 4)), "n1", 1, None)


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., RunPaths]:
    """Return a function that writes the signs of nodes into a run directory."""

    def write(*told: NodeActivity) -> RunPaths:
        paths = RunPaths(tmp_path)
        os.makedirs(paths.activity)
        for one in told:
            Path(paths.activity, one.text()).touch()
        return paths

    return write


def test_status_has_the_ages_of_the_last_signs(tell: Callable[..., RunPaths]) -> None:
    """The newest of all nodes; a rank that is silent for long is named, with what would end it."""
    now = 1_700_000_060.0
    first = NodeActivity("n1", 3, 1_700_000_000, 1, 40, 0, 2, 0, None)
    second = NodeActivity("n2", 3, 1_700_000_030, 5, 1800, 1830, 30, 0, None)
    paths = tell(first, second, second._replace(node="n9", cpu_s=9000), second._replace(round=2, cpu_s=9000))
    newest, quiet = activity_texts(paths, ROUND, now, has_limit=False)
    ages = "last output 1 min 0 s ago, CPU time 30 s ago, GPU use not sampled (--sample-gpus)"
    assert f"the workers tell no steps; {ages}" == newest
    assert quiet.startswith("rank 5 on n2: no output for 30 min 30 s, no CPU time for 31 min 0 s; --silence")
    assert "--silence" not in activity_texts(paths, ROUND, now, has_limit=True)[1]


def test_status_names_no_rank_that_was_active_lately(tell: Callable[..., RunPaths]) -> None:
    """By any of its signs."""
    one = NodeActivity("n1", 3, 1_700_000_000, 1, None, 4000, None, 10, 3)
    (newest,) = activity_texts(tell(one), ROUND, 1_700_000_000.0, has_limit=False)
    assert newest.endswith("last output not seen, as it goes to no log, CPU time 10 s ago, GPU use 3.0 s ago")


def test_status_says_nothing_without_signs(tell: Callable[..., RunPaths], tmp_path: Path) -> None:
    """As of workers that tell their steps."""
    assert [] == activity_texts(RunPaths(tmp_path / "none"), ROUND, 0.0, has_limit=False)
    assert [] == activity_texts(tell(), ROUND, 0.0, has_limit=False)


SLEEPER = """
import time
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    if os.environ["RANK"] == "3":
        time.sleep(600)
    while True:
        print("at work", flush=True)
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_rank_that_tells_nothing_and_does_nothing_hangs(make: MakeAgents) -> None:
    """With a limit, all are started again; the report names that rank. Its program does not know of us."""
    agents = make(SLEEPER)
    for node in (0, 1):
        agents.start(
            node, "--nnodes=2", "--lease=30", "--redirects=3", "--silence-timeout=6", "--max-hangs=1"
        )
    assert [0, 0] == [agents.code(node) for node in (0, 1)]
    (first,) = agents.entries(RoundEnded)
    assert (Cause.HANG, 3, ExitCode.HUNG) == (first.cause, first.failure["rank"], first.failure["exitcode"])
    assert "no output, no CPU time and no GPU use for" in first.failure["message"]
    assert 2 == len(agents.rounds())
