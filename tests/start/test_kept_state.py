"""The states that an agent leaves in its node's memory for the next start: which ones are taken over."""

from __future__ import annotations

import fcntl
import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import Cause, Entry, RoundEnded
from hpc_elastic.record.memory_files import StateHead, own_file
from hpc_elastic.record.run_log import open_log
from hpc_elastic.settings.values import LONGEST_S
from hpc_elastic.start import kept_state
from hpc_elastic.start.kept_state import RECORD, KeptFile, KeptState, Mine
from hpc_elastic.start.scratch import folder_of, scratch_directory
from hpc_elastic.typed_json import checksum_of, read
from tests.meet.build import REQUEUED, formed, start

NOW, STAYS_S = 1_700_000_000.0, 900.0
RESCUED = "rescued-1-30-0-3-0"
COPY = "copy-0123abcd-0-0"


class World:
    """A node, and a run that has formed one round.

    Args:
        place: a directory.
        paths: of the run.
    """

    def __init__(self, place: Path, paths: RunPaths) -> None:
        self.place = place / "memory"
        self.place.mkdir()
        self.mine = Mine("run", paths, "n1")
        self.write(start(), formed(1))

    def write(self, *entries: Entry) -> None:
        """Add records to the journal of the run."""
        log = open_log(self.mine.paths, "n1")
        for entry in entries:
            log.commit(lambda _, entry=entry: entry)  # type: ignore[misc]

    def save(self, step: int) -> None:
        """Mark a checkpoint in files."""
        write_mark(self.mine.paths, MarkName(step, 1, 0, 1), None, 1)

    def leave(self, now: float = NOW, stays_s: float = STAYS_S) -> KeptState | None:
        """Be the agent of a start that leaves states of the steps 30 and 20; return their record."""
        with scratch_directory([str(self.place)]) as scratch:
            head = StateHead(bytes(8), 1, 20, 0, 3, 0, 0, 0).packed()
            Path(scratch, RESCUED).write_bytes(b"state")
            Path(scratch, COPY).write_bytes(head + bytes(100))
            Path(scratch, "own-1-0-0").write_bytes(own_file(30, b""))
            for name in ("copy-0123abcd-0-1", "own-1-0-1", "1.0", "rescue.lock", f"{RESCUED}.part"):
                Path(scratch, name).write_bytes(b"")
            return kept_state.keep(scratch, self.mine, now, stays_s)

    def next_start(self, now: float = NOW + 60, mine: Mine | None = None) -> list[str]:
        """Be the agent of the next start; return the states in its directory."""
        with scratch_directory([str(self.place)]) as scratch:
            kept_state.take_over(scratch, mine or self.mine, now)
            return sorted(os.listdir(scratch))

    def kept(self) -> list[Path]:
        """Return the directories that are kept."""
        return [*Path(folder_of(str(self.place))).glob("kept-*")]


@pytest.fixture
def world(tmp_path: Path, run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> World:
    """A node, whose clock stands still for what removes expired directories."""
    monkeypatch.setattr("hpc_elastic.start.scratch.SystemClock.wall", lambda _: NOW)
    return World(tmp_path, run_paths)


def test_the_next_start_takes_over_what_the_last_one_has_kept(world: World) -> None:
    """Whole states alone stay; the agent that takes them over removes them at its end."""
    world.write(RoundEnded(1, Cause.CRASH, ("n1",), None))
    made = world.leave()
    assert made is not None
    assert (1, 3, 30, NOW + STAYS_S) == (made.round, made.world_size, made.step, made.until)
    assert checksum_of(made._replace(checksum=0)) == made.checksum
    (kept,) = world.kept()
    assert {COPY, "own-1-0-0", RESCUED, RECORD} == set(os.listdir(kept))
    assert 0o600 == (kept / RECORD).stat().st_mode & 0o777
    assert 0o700 == kept.stat().st_mode & 0o777
    assert [COPY, "own-1-0-0", RESCUED] == world.next_start()
    assert [] == os.listdir(world.place)


def test_states_may_stay_without_a_limit(world: World) -> None:
    """Of the user's; the name of their directory needs one."""
    made = world.leave(stays_s=math.inf)
    assert made is not None
    assert NOW + LONGEST_S == made.until
    assert [COPY, "own-1-0-0", RESCUED] == world.next_start()


def test_values_of_single_ranks_alone_are_not_called_a_state(world: World) -> None:
    """The ranks of another node may have kept it; none of it may be there."""
    with scratch_directory([str(world.place)]) as scratch:
        Path(scratch, "own-1-0-0").write_bytes(own_file(31, b""))
        made = kept_state.keep(scratch, world.mine, NOW, STAYS_S)
    assert made is not None
    assert "values of single ranks, without a state, of step 31" == made.text
    world.next_start()
    again = world.leave()
    assert again is not None
    assert "the state of step 30" == again.text


def test_a_state_is_of_its_own_step_whatever_single_ranks_have_noted(world: World) -> None:
    """The values of a rank may be one step ahead of the state that others have kept."""
    with scratch_directory([str(world.place)]) as scratch:
        Path(scratch, RESCUED).write_bytes(b"state")
        Path(scratch, "own-1-0-0").write_bytes(own_file(31, b""))
        made = kept_state.keep(scratch, world.mine, NOW, STAYS_S)
    assert made is not None
    assert (30, "the state of step 30") == (made.step, made.text)


def test_only_states_that_are_newer_than_the_checkpoint_stay(world: World) -> None:
    """After a drain with its checkpoint nothing does."""
    world.save(20)
    world.leave()
    assert ["own-1-0-0", RESCUED] == world.next_start()
    world.save(30)
    assert world.leave() is None
    assert [] == os.listdir(world.place)


def _of_another_run(world: World) -> None:
    world.mine = world.mine._replace(run_id="other")


def _of_another_directory(world: World) -> None:
    world.mine = world.mine._replace(paths=RunPaths(f"{world.mine.paths.root}-2"))


def _of_another_node(world: World) -> None:
    world.mine = world.mine._replace(node="n2")


@pytest.mark.parametrize("changed", [_of_another_run, _of_another_directory, _of_another_node])
def test_states_of_others_stay_for_these(world: World, changed: Callable[[World], None]) -> None:
    """Until their time is over."""
    world.leave()
    changed(world)
    assert [] == world.next_start()
    assert 1 == len(world.kept())


def test_agents_of_other_runs_lock_no_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All may start at once, and the agent that a state is for would leave it."""
    world.leave()
    locked: list[int] = []
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, how: locked.append(how))
    others = world.mine._replace(run_id="other", paths=RunPaths(f"{world.mine.paths.root}-2"))
    with scratch_directory([str(world.place)]) as scratch:
        locked.clear()
        kept_state.take_over(scratch, others, NOW)
        kept_state.remove_of(others.paths, str(world.place))
    assert [] == locked
    assert 1 == len(world.kept())


def _saved_since(world: World) -> None:
    world.save(30)


def _formed_since(world: World) -> None:
    world.write(start(REQUEUED), formed(2, epoch=REQUEUED))


def _begun_anew(world: World) -> None:
    (journal,) = Path(world.mine.paths.root).glob("journal")
    journal.rename(journal.with_name("old"))
    world.write(start(), formed(1, ("n1", "n4", "n5")))


def _wiped(world: World) -> None:
    for path in world.kept()[0].iterdir():
        path.unlink()


def _cut_off(world: World) -> None:
    os.truncate(world.kept()[0] / RESCUED, 2)


def _damaged(world: World) -> None:
    (world.kept()[0] / RECORD).write_bytes(b"{")


def _one_bit_differs(world: World) -> None:
    path = world.kept()[0] / RECORD
    path.write_bytes(path.read_bytes().replace(b'"step": 30', b'"step": 31'))


def _names_another_place(world: World) -> None:
    kept = world.kept()[0]
    (world.place / "aside").write_bytes(b"state")
    made = read(KeptState, (kept / RECORD).read_bytes())
    named = made._replace(files=(*made.files, KeptFile(f"../../{world.place.name}/aside", 5))).sealed
    (kept / RECORD).write_bytes(json.dumps(named._asdict()).encode())


def _by_a_link(world: World) -> None:
    path = world.kept()[0] / RESCUED
    path.symlink_to(path.rename(world.place / "aside"))


def _seen_by_others(world: World) -> None:
    world.kept()[0].chmod(0o750)


@pytest.mark.parametrize(
    "happens",
    [
        _saved_since,
        _formed_since,
        _begun_anew,
        _wiped,
        _cut_off,
        _damaged,
        _one_bit_differs,
        _names_another_place,
        _by_a_link,
        _seen_by_others,
    ],
)
def test_a_stale_or_torn_state_is_removed(world: World, happens: Callable[[World], None]) -> None:
    """It is older than a checkpoint, or of an earlier round, as on a node that comes back later."""
    world.leave()
    happens(world)
    assert [] == world.next_start()
    assert [] == world.kept()


@pytest.mark.parametrize("clock", [NOW + STAYS_S, NOW - 60], ids=["expired", "the clock was set back"])
def test_any_agent_of_the_user_removes_what_is_expired(
    world: World, monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    """Also of another run."""
    world.leave()
    _of_another_run(world)
    monkeypatch.setattr("hpc_elastic.start.scratch.SystemClock.wall", lambda _: clock)
    assert [] == world.next_start(clock)
    assert [] == os.listdir(world.place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_left_alone(world: World) -> None:
    """Nothing in it is read, and it stays."""
    world.leave()
    (kept,) = world.kept()
    os.chown(kept, 65534, 65534)
    assert [] == world.next_start()
    assert RESCUED in os.listdir(kept)


def test_a_full_memory_keeps_nothing(world: World) -> None:
    """Without room for the record all goes, as without the setting."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))  # the states fit, their record does not
    try:
        with pytest.raises(OSError, match="large"):
            world.leave()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [] == os.listdir(world.place)


def test_the_end_of_a_run_removes_its_states(world: World) -> None:
    """Those of other runs stay."""
    world.leave()
    kept_state.remove_of(RunPaths(f"{world.mine.paths.root}-2"), str(world.place))
    assert 1 == len(world.kept())
    kept_state.remove_of(world.mine.paths, str(world.place))
    assert [] == os.listdir(world.place)


def test_a_damaged_record_goes_with_its_states_at_the_end_of_any_run(world: World) -> None:
    """Nobody can take them over."""
    world.leave()
    _damaged(world)
    kept_state.remove_of(RunPaths(f"{world.mine.paths.root}-2"), str(world.place))
    assert [] == os.listdir(world.place)


def test_no_descriptor_stays_open(world: World) -> None:
    """Of files that are looked through, also where the state is refused."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        world.leave()
        world.next_start()
        world.leave()
        (kept,) = world.kept()
        (kept / RESCUED).write_bytes(b"another")
        assert [] == world.next_start()
    assert before == len(os.listdir("/proc/self/fd"))
