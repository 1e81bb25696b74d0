"""What limits there are for a silence, given or learned, and what is kept of what was measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpc_elastic.node.decision import Hang
from hpc_elastic.node.setup.hang_times import HangOptions
from tests.node.hang_world import MakeWorld, World, make_world

LEARNED = HangOptions(floor=10.0, samples=2, recheck=5.0)


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
