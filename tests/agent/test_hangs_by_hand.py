"""When a node asks for a look, what it makes of it, and when it leaves all alone."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.agent.decision import Group, Hang
from hpc_elastic.agent.hang_times import HangOptions
from hpc_elastic.rendezvous.journal import Cause, DrainRequested, Epoch, RoundEnded, RoundFormed, Then
from hpc_elastic.testing.waiting import wait_until
from tests.agent.hang_world import FORMED, RANKS, World, make_world

TEN = HangOptions(timeout=10.0)
LEARNED = HangOptions(floor=10.0, samples=2, recheck=5.0)
MakeWorld = Callable[..., World]


@pytest.fixture
def make_hangs(tmp_path: Path) -> Iterator[MakeWorld]:
    """Return a function that makes the watch over two workers, which have made their first step."""
    made: list[World] = []

    def new(options: HangOptions = TEN) -> World:
        world = make_world(tmp_path, options)
        made.append(world)
        world.tick(0, 1)
        assert world.look() is Hang.NONE
        return world

    yield new
    for world in made:
        world.group.context.close(timeout=0)


@pytest.fixture
def world(make_hangs: MakeWorld) -> World:
    """A node whose workers may make no step for ten seconds."""
    return make_hangs()


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
    assert world.watch(19, 1) is Hang.NONE


def test_a_worker_that_is_stopped_is_not_suspected(world: World) -> None:
    """Its time begins anew as long as it is stopped; that is said once."""
    pid = world.group.context.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: f"{pid} (cat) T" in Path(f"/proc/{pid}/stat").read_text(), "the worker to stop")
    assert world.watch(20, 1) is Hang.NONE
    assert 1 == world.said.count("rank 0 is stopped (SIGSTOP): that time does not count")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: f"{pid} (cat) S" in Path(f"/proc/{pid}/stat").read_text(), "the worker to go on")
    assert world.watch(9, 1) is Hang.NONE
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


DRAIN = DrainRequested(Cause.STOP, "n2", Then.LEAVE, "", FORMED.epoch)
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


def steady(make_hangs: MakeWorld) -> World:
    """Return a world that has learned that a step takes a second at most."""
    world = make_hangs(LEARNED)
    assert world.watch(5, 0, 1) is Hang.NONE
    return world


def test_what_was_only_learned_needs_a_second_look(make_hangs: MakeWorld) -> None:
    """The first one says so; the second, some seconds later, proves it."""
    world = steady(make_hangs)
    world.ask(10, 1)
    world.other_writes()
    assert world.look() is Hang.NONE
    assert "; a second look follows in 5 s" in world.said
    assert math.inf == world.hangs.nap_s
    assert world.watch(4, 1) is Hang.NONE
    assert world.watch(1, 1) is Hang.SUSPECTED
    world.hangs.ask()
    world.other_writes(2)
    assert world.look() is Hang.PROVEN
    assert 1 == world.said.count("a second look follows")


def test_who_goes_on_before_the_second_look_needs_none(make_hangs: MakeWorld) -> None:
    """The next suspicion begins with a first look again."""
    world = steady(make_hangs)
    world.ask(10, 1)
    world.other_writes()
    world.look()
    assert world.watch(1, 0, 1) is Hang.NONE
    assert world.watch(10, 0, 1) is Hang.NONE
    assert world.watch(19, 1) is Hang.NONE
    world.ask(1, 1)
    world.other_writes(2)
    assert world.look() is Hang.NONE
    assert 2 == world.said.count("a second look follows")


@pytest.mark.parametrize("moves", [True, False])
def test_who_has_moved_much_data_until_the_second_look_is_alive(make_hangs: MakeWorld, moves: bool) -> None:
    """It writes one large file, or waits for an upload; the other rank's data is no excuse."""
    world = steady(make_hangs)
    world.ask(10, 1)
    world.other_writes()
    world.look()
    world.feed(0 if moves else 1)
    world.ask(5, 1)
    world.other_writes(2)
    assert (Hang.NONE if moves else Hang.PROVEN) is world.look()
    assert moves == ("the workers go on: no hang" in world.said)


@pytest.mark.parametrize(
    "options", [HangOptions(timeout=10.0, recheck=5.0), LEARNED._replace(timeout=10.0)], ids=["alone", "both"]
)
def test_a_limit_that_was_given_needs_no_second_look(make_hangs: MakeWorld, options: HangOptions) -> None:
    """Somebody has said how long a step may take."""
    world = make_hangs(options)
    world.ask(10, 1)
    world.other_writes()
    assert world.look() is Hang.PROVEN


def test_a_first_step_has_its_own_limit(tmp_path: Path) -> None:
    """Nobody has ticked; the limit was given, so one look is enough."""
    world = make_world(tmp_path, HangOptions(first_step=30.0))
    try:
        assert world.watch(29) is Hang.NONE
        world.ask(1)
        assert "ranks 0, 1: no first step for 30 s (limit 30 s)" == world.hangs.detail
        world.other_writes()
        assert world.look() is Hang.PROVEN
    finally:
        world.group.context.close(timeout=0)


def test_a_section_has_its_own_limit(world: World) -> None:
    """It is a sign of life to enter one; its limit was given, so one look is enough."""
    assert world.watch(5, 1) is Hang.NONE
    world.group.channels[0].enter(b"eval".ljust(48, b"\0"), 20_000)
    assert world.watch(19, 1) is Hang.NONE
    world.ask(2, 1)
    assert "rank 0: in section eval for 20 s (limit 20 s)" == world.hangs.detail
    world.other_writes()
    assert world.look() is Hang.PROVEN


def test_a_critical_section_is_a_sign_of_life(world: World) -> None:
    """Entering it begins the time anew, and leaving it, too."""
    assert world.watch(8, 1) is Hang.NONE
    world.group.channels[0].enter_critical(b"saving".ljust(48, b"\0"), world.clock.monotonic())
    assert world.watch(8, 1) is Hang.NONE
    world.group.channels[0].leave_critical()
    assert world.watch(9, 1) is Hang.NONE
    assert world.watch(2, 1) is Hang.SUSPECTED


def test_stacks_that_cannot_be_written_down_are_no_reason_to_stop(world: World) -> None:
    """It is said, and the verdict is passed all the same."""
    world.directory().parent.mkdir(parents=True)
    world.directory().write_text("a file stands where the directory should be")
    world.ask(10, 1)
    assert world.look() is Hang.NONE
    assert "the stacks of the workers cannot be written down" in world.said
    assert world.watch(15) is Hang.PROVEN
    world.hangs.report()
    assert "nothing was heard from n1, n2" in world.said


def measured(world: World) -> dict[str, list[float]] | None:
    """Return what the node has written down of its steps."""
    path = Path(world.parts.paths.timeouts) / "n1.json"
    kinds: dict[str, list[float]] | None = json.loads(path.read_text())["kinds"] if path.exists() else None
    return kinds


def test_what_was_measured_is_kept_now_and_then(world: World) -> None:
    """Once a minute, if it would change a limit, and at the end of the round."""
    assert world.watch(59, 0, 1) is Hang.NONE
    assert None is measured(world)
    world.watch(1, 0, 1)
    first = measured(world)
    assert first is not None
    assert [1.0, 120] == first["step"]
    assert world.watch(5, 1) is Hang.NONE
    assert world.watch(54, 0, 1) is Hang.NONE
    assert first == measured(world)
    world.watch(1, 0, 1)
    second = measured(world)
    assert second is not None
    assert 6.0 == second["step"][0]


def test_what_was_measured_is_kept_at_the_end(world: World) -> None:
    """What is no news is not written again."""
    world.watch(5, 0, 1)
    world.hangs.close()
    first = measured(world)
    assert first is not None
    assert [1.0, 10] == first["step"]
    world.watch(1, 0, 1)
    world.hangs.close()
    assert first == measured(world)


def test_a_leaving_node_is_not_watched(world: World) -> None:
    """Who is about to leave with its workers is left alone."""
    world.parts.rendezvous.run.report_left(Cause.PREEMPTION, "")
    assert Epoch(0, 0, 0) == world.parts.rendezvous.run.state.epoch
    assert world.watch(25) is Hang.NONE
