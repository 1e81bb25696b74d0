"""When a node asks for a look, what it makes of it, and when it leaves all alone."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.node.decision import Group, Hang
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.record.journal import AfterDrain, Cause, DrainRequested, Epoch, RoundEnded, RoundFormed
from hpc_elastic.testing.waiting import wait_until
from tests.node.hang_world import FORMED, RANKS, TEN, MakeWorld, World, make_world


def test_the_silent_rank_is_suspected_and_named(world: World) -> None:
    """The other one goes on, and is not named."""
    assert world.watch(9, 1) is Hang.NONE
    assert world.watch(1, 1) is Hang.SUSPECTED
    assert "rank 0: no progress for 10 s (limit 10 s)" == world.hangs.detail


def test_all_silent_ranks_are_named(world: World) -> None:
    """In one suspicion."""
    assert world.watch(10) is Hang.SUSPECTED
    assert "ranks 0, 1: no progress for 10 s (limit 10 s)" == world.hangs.detail


def test_all_nodes_are_asked_to_look(world: World) -> None:
    """By a record with the round, the number of the look and the reason; people are told, too."""
    world.ask(10, 1)
    asked = world.asked
    assert asked is not None
    assert (1, 1, "n1", world.hangs.detail) == (asked.number, asked.look, asked.node, asked.detail)
    assert f"{world.hangs.detail}: all nodes write down where their ranks are" in world.said


def test_the_verdict_waits_for_all_nodes(world: World) -> None:
    """Meanwhile the node looks again soon; then the round ends for the one who is elsewhere."""
    world.ask(10)
    assert math.inf == world.hangs.nap_s
    assert world.look() is Hang.NONE
    assert world.hangs.nap_s < 1.0
    world.other_writes()
    assert world.look() is Hang.PROVEN
    world.hangs.report()
    ended = world.parts.rendezvous.run.state.ended
    assert isinstance(ended, RoundEnded)
    assert (1, Cause.HANG, ("n2",)) == (ended.number, ended.cause, ended.nodes)
    assert ended.failure is not None
    assert (2, 1) == (ended.failure["rank"], ended.failure["step"])
    assert "the workers hang: " in world.said


def test_who_does_not_answer_is_waited_for_so_long(world: World) -> None:
    """Then the verdict is passed without it, and says so."""
    world.ask(10, 1)
    assert world.watch(15) is Hang.NONE
    assert world.watch(1) is Hang.PROVEN
    world.hangs.report()
    assert "nothing was heard from n2" in world.said


def test_each_rank_is_written_down(world: World) -> None:
    """With what it did since its silence was half over, not since the last look at it."""
    world.ask(10, 1)
    world.look()
    assert {"n1.json", "rank0.txt", "rank1.txt"} == set(os.listdir(world.directory()))
    text = (world.directory() / "rank0.txt").read_text()
    assert "no sign of life for 10.0 s" in text
    assert "s of CPU time in the last 5.0 s" in text
    assert "CPU time in the last" not in (world.directory() / "rank1.txt").read_text()


def test_what_was_noted_in_an_earlier_silence_does_not_count(world: World) -> None:
    """A rank that has made a step meanwhile is noted anew when its next silence is half over."""
    assert world.watch(7, 1) is Hang.NONE
    assert world.watch(1, 0, 1) is Hang.NONE
    world.ask(10, 1)
    world.look()
    assert "s of CPU time in the last 5.0 s" in (world.directory() / "rank0.txt").read_text()


def test_what_a_rank_does_is_noted_when_half_of_a_short_time_is_over(make_hangs: MakeWorld) -> None:
    """Also if that is no longer than a moment."""
    world = make_hangs(HangOptions(timeout=1.0))
    world.clock.advance(0.5)
    assert world.look() is Hang.NONE
    world.clock.advance(0.5)
    assert world.look() is Hang.SUSPECTED
    world.hangs.ask()
    world.look()
    assert "s of CPU time in the last 0.5 s" in (world.directory() / "rank0.txt").read_text()


def test_who_goes_on_meanwhile_is_acquitted(world: World) -> None:
    """A step between the question and the verdict ends the suspicion, and the next one comes later."""
    world.ask(10, 1)
    world.other_writes()
    world.tick(0)
    assert world.look() is Hang.NONE
    assert "the workers go on: no hang" in world.said
    assert world.watch(19, 1) is Hang.NONE
    assert world.watch(2, 1) is Hang.SUSPECTED


def test_a_rank_that_somebody_stopped_acquits_all(world: World) -> None:
    """Time in which a rank of any node was stopped does not count; that is said once."""
    world.ask(10, 1)
    world.other_writes(state="T")
    assert world.look() is Hang.NONE
    assert "rank 2 (n2): stopped (SIGSTOP)" in world.said
    assert "no hang" not in world.said
    assert {"n2": (2,)} == world.parts.rendezvous.run.state.stopped_ranks
    assert world.watch(19, 1) is Hang.NONE


def test_a_worker_that_is_stopped_is_not_suspected(world: World) -> None:
    """Its time begins anew as long as it is stopped; that is said once."""
    pid = world.group.context.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: f"{pid} (cat) T" in Path(f"/proc/{pid}/stat").read_text(), "the worker to stop")
    assert world.watch(20, 1) is Hang.NONE
    assert 1 == world.said.count("rank 0 is stopped (SIGSTOP): that time does not count")
    assert {"n1": (0,)} == world.parts.rendezvous.run.state.stopped_ranks
    number = world.parts.rendezvous.run.state.last
    assert world.watch(20, 1) is Hang.NONE
    assert number == world.parts.rendezvous.run.state.last
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: f"{pid} (cat) S" in Path(f"/proc/{pid}/stat").read_text(), "the worker to go on")
    assert world.watch(9, 1) is Hang.NONE
    assert {} == world.parts.rendezvous.run.state.stopped_ranks
    assert world.watch(1, 1) is Hang.SUSPECTED


def test_a_worker_that_has_ended_is_not_suspected(world: World) -> None:
    """Only the other one is, when it is silent as well."""
    pid = world.group.context.pids()[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: 0 in world.group.context.exit_codes(), "the worker to end")
    assert world.watch(20, 1) is Hang.NONE
    assert world.watch(10) is Hang.SUSPECTED
    assert "rank 1: no progress for 10 s (limit 10 s)" == world.hangs.detail


def test_a_look_that_another_node_asks_for_is_taken_once(world: World) -> None:
    """What has been written down stays; this node passes no verdict on it."""
    world.other_asks()
    assert world.watch(1, 0, 1) is Hang.NONE
    path = world.directory() / "n1.json"
    assert "n1" == json.loads(path.read_text())["node"]
    path.unlink()
    world.other_writes()
    assert world.watch(5, 0, 1) is Hang.NONE
    assert not path.exists()
    assert math.inf == world.hangs.nap_s


def test_who_suspects_leaves_the_verdict_to_who_has_asked(world: World) -> None:
    """Two nodes may suspect at the same time; the one whose record is there says what was found."""
    assert world.watch(10, 1) is Hang.SUSPECTED
    world.other_asks()
    world.other_writes()
    assert world.watch(5, 1) is Hang.NONE
    assert (world.directory() / "n1.json").exists()


def test_a_newer_look_is_taken_as_well(world: World) -> None:
    """It has a number and a directory of its own."""
    world.other_asks()
    world.watch(1, 0, 1)
    world.other_asks(2)
    world.watch(1, 0, 1)
    assert [True, True] == [(world.directory(look) / "n1.json").exists() for look in (1, 2)]


def test_the_node_that_has_asked_is_given_time_to_say_what_it_has_found(world: World) -> None:
    """Until then nobody else asks; if it says nothing another one does."""
    world.other_asks()
    assert world.watch(45) is Hang.NONE
    assert world.watch(1) is Hang.SUSPECTED


def test_a_look_that_another_node_asked_for_makes_everybody_wait_longer(world: World) -> None:
    """Each look gives twice the time, until a hang is proven."""
    world.other_asks()
    assert world.watch(46, 0, 1) is Hang.NONE
    assert world.watch(19, 1) is Hang.NONE
    assert world.watch(1, 1) is Hang.SUSPECTED


DRAIN = DrainRequested(Cause.STOP, "n2", AfterDrain.LEAVE, "", FORMED.epoch)
NEXT = RoundFormed(2, FORMED.epoch, FORMED.members, "127.0.0.1", 29_000, None)


def drain(world: World) -> None:
    """Ask all workers to save and stop."""
    world.parts.rendezvous.run.commit(DRAIN)


def begin_next(world: World) -> None:
    """End the round, and form the next."""
    world.parts.rendezvous.run.report_lost(1, ["n2"])
    world.parts.rendezvous.run.commit(NEXT)


@pytest.mark.parametrize("happens", [drain, begin_next])
def test_nobody_is_suspected_of_what_is_asked_for(world: World, happens: Callable[[World], None]) -> None:
    """Workers that are to stop, or whose round is over, make no steps for good reasons."""
    happens(world)
    assert world.watch(25) is Hang.NONE


def test_time_that_does_not_count_ends_a_suspicion(world: World) -> None:
    """A node that is blind begins anew, and drops the look that was under way."""
    world.ask(10, 1)
    assert world.look(counts=False) is Hang.NONE
    world.other_writes()
    assert world.watch(9, 1) is Hang.NONE
    assert "no hang" not in world.said


def test_a_look_that_is_dropped_leaves_nothing_behind(tmp_path: Path) -> None:
    """What reads the stacks of a worker is ended, and its file is taken away."""
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "py-spy").chmod(0o755)
    world = make_world(tmp_path, TEN, path=f"{tmp_path}:/usr/bin:/bin")
    try:
        world.other_asks()
        world.look()
        scratch = Path(world.parts.scratch)
        assert RANKS == len(list(scratch.glob("py-spy.*")))
        world.hangs.close()
        assert [] == list(scratch.glob("py-spy.*"))
    finally:
        world.group.context.close(timeout=0)


def test_workers_that_are_ending_are_not_watched(world: World) -> None:
    """Only those that run can hang."""
    for _ in range(20):
        world.clock.advance(1.0)
        assert world.look(status=Group.STOPPING) is Hang.NONE


def test_a_leaving_node_is_not_watched(world: World) -> None:
    """Who is about to leave with its workers is left alone."""
    world.parts.rendezvous.run.report_left(Cause.PREEMPTION, "")
    assert Epoch(0, 0, 0, 0) == world.parts.rendezvous.run.state.epoch
    assert world.watch(25) is Hang.NONE


@pytest.mark.parametrize("how", ["paused", "drained"])
def test_workers_that_are_to_stop_are_not_suspected(world: World, how: str) -> None:
    """They save, or wait for those that do."""
    run = world.parts.rendezvous.run
    if how == "paused":
        run.request_drain(Cause.MEMBERSHIP, AfterDrain.REJOIN)
    else:
        run.report_drained(Cause.PREEMPTION)
    assert run.state.running is not None
    assert world.watch(20) is Hang.NONE
