"""Whether what has the name of a run directory is still the directory of that run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpc_elastic.errors import TakenOverError
from hpc_elastic.store.trust import HeldRoot, require_same, run_id_in

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


def make_run(place: Path, run_id: str = "train-1") -> Path:
    """Return a run directory."""
    place.mkdir(mode=0o700, parents=True)
    (place / "run.json").write_text(f'{{"format": 1, "run_id": "{run_id}"}}')
    return place


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory."""
    return make_run(tmp_path / "proj" / "run")


@pytest.fixture
def held(run: Path) -> Iterator[HeldRoot]:
    """Return the same as an agent holds it."""
    with closing(HeldRoot(str(run))) as held:
        held.check()
        yield held


def test_the_directory_of_the_run_is_known_by_its_name(run: Path) -> None:
    """Two runs of one user are told apart; where no name is known, any does."""
    require_same(str(run), "train-1")
    require_same(str(run), "")
    with pytest.raises(TakenOverError, match="it holds the run train-1, not train-2"):
        require_same(str(run), "train-2")


def test_a_damaged_name_is_no_other_name(run: Path) -> None:
    """Others tell that the file is damaged."""
    (run / "run.json").write_text("[" * 3)
    assert "" == run_id_in(str(run))
    require_same(str(run), "train-1")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_can_write_to_is_none(run: Path, held: HeldRoot, mode: int) -> None:
    """Also if it was opened by a script of the user's own while the run goes on."""
    run.chmod(mode)
    with pytest.raises(TakenOverError, match=f"others can write to it .mode {mode:o}.") as caught:
        held.check()
    assert f"chmod 700 {run}" in caught.value.fix


def test_two_runs_that_are_exchanged_are_noticed(run: Path, held: HeldRoot) -> None:
    """Both are the user's; what was the run is still reached."""
    run.rename(run.with_name("moved"))
    make_run(run, "train-2")
    with pytest.raises(TakenOverError, match="it holds the run train-2, not train-1"):
        held.check()
    assert "train-1" == run_id_in(held.reached)


def test_another_directory_without_a_run_is_noticed(run: Path, held: HeldRoot) -> None:
    """Such as one that was made to be moved there."""
    run.rename(run.with_name("moved"))
    run.mkdir(mode=0o700)
    with pytest.raises(TakenOverError, match="it is another directory, without the run train-1"):
        held.check()


def test_another_directory_with_a_pipe_for_its_run_is_noticed(run: Path, held: HeldRoot) -> None:
    """Its name is not read; that is no file system which does not answer."""
    run.rename(run.with_name("moved"))
    run.mkdir(mode=0o700)
    os.mkfifo(run / "run.json")
    with pytest.raises(TakenOverError, match=r"run\.json: it is a FIFO, not a plain file"):
        held.check()


def test_a_directory_that_is_numbered_anew_is_the_same(run: Path, held: HeldRoot) -> None:
    """As sshfs does with what it has forgotten; here it is a copy."""
    run.rename(run.with_name("moved"))
    make_run(run)
    held.check()


def test_a_directory_that_is_away_is_waited_for(run: Path, held: HeldRoot) -> None:
    """Blind is not dead: the file system may come back."""
    run.parent.rename(run.parent.with_name("away"))
    held.check()
    run.parent.with_name("away").rename(run.parent)
    held.check()


@needs_root
def test_somebody_elses_directory_is_noticed(run: Path, held: HeldRoot) -> None:
    """Whether it can be looked into or not."""
    run.rename(run.with_name("moved"))
    run.mkdir(mode=0o700)
    os.chown(run, NOBODY, NOBODY)
    with pytest.raises(TakenOverError, match="it belongs to user nobody, not to you"):
        held.check()


@needs_root
def test_somebody_elses_directory_above_is_noticed(run: Path, held: HeldRoot) -> None:
    """The whole project was renamed, and what is in its place is empty."""
    run.parent.rename(run.parent.with_name("moved"))
    run.parent.mkdir()
    os.chown(run.parent, NOBODY, NOBODY)
    with pytest.raises(TakenOverError, match=f"{run.parent} on the way to it now belongs to user nobody"):
        held.check()


@needs_root
def test_a_link_in_its_place_is_followed_to_what_it_is(run: Path, held: HeldRoot) -> None:
    """To the same directory it changes nothing, to another it does."""
    moved = run.with_name("moved")
    run.rename(moved)
    run.symlink_to(moved)
    held.check()
    run.unlink()
    (run.with_name("other")).mkdir()
    os.chown(run.with_name("other"), NOBODY, NOBODY)
    run.symlink_to(run.with_name("other"))
    with pytest.raises(TakenOverError):
        held.check()


def _link(place: Path, target: str) -> None:
    place.symlink_to(target)
    os.chown(place, NOBODY, NOBODY, follow_symlinks=False)


IN_THE_WAY: dict[str, tuple[Callable[[Path], None], str]] = {
    "to nothing": (lambda place: _link(place, "/nowhere"), "is a link that now belongs to user nobody"),
    "to a device": (lambda place: _link(place, "/dev/null"), "is a link that now belongs to user nobody"),
    "to root's": (lambda place: _link(place, "/etc"), "is a link that now belongs to user nobody"),
    "to itself": (lambda place: _link(place, place.name), "is a link that now belongs to user nobody"),
    "to no name": (lambda place: _link(place, "n" * 300), "is a link that now belongs to user nobody"),
    "the user's link": (lambda place: place.symlink_to("/nowhere"), "is now a link, and other users"),
    "the user's file": (Path.touch, "is now a file, and other users"),
    "the user's directory": (Path.mkdir, "is now another directory, and other users"),
}


@needs_root
@pytest.mark.parametrize("is_above", [True, False])
@pytest.mark.parametrize("case", IN_THE_WAY)
def test_what_another_user_puts_in_the_way_is_noticed(tmp_path: Path, case: str, *, is_above: bool) -> None:
    """In a shared place, whatever its link leads to; also what it has moved there of the user's."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    os.chown(shared, NOBODY, NOBODY)
    run = make_run(shared / "proj" / "run") if is_above else make_run(shared / "run")
    place = run.parent if is_above else run
    put, words = IN_THE_WAY[case]
    with closing(HeldRoot(str(run))) as held:
        place.rename(shared / "moved")
        held.check()  # nothing is in its place: a file system may look like that
        put(place)
        with pytest.raises(TakenOverError) as caught:
            held.check()
    if is_above:
        assert f"{place} on the way to it {words}" in caught.value.message


@needs_root
def test_links_of_the_user_that_lead_nowhere_for_a_while_are_waited_for(tmp_path: Path) -> None:
    """As those to a file system that is mounted on demand, in a shared place and in one of the user's own."""
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", NOBODY, NOBODY)
    (tmp_path / "shared" / "scratch").symlink_to(tmp_path / "mount")
    run = make_run(tmp_path / "mount" / "run")
    (tmp_path / "home").symlink_to("shared/scratch")
    with closing(HeldRoot(str(tmp_path / "home" / "run"))) as held:
        run.parent.rename(tmp_path / "away")
        held.check()
        (tmp_path / "home").unlink()
        (tmp_path / "home").symlink_to("elsewhere")  # the user's doing: others cannot
        held.check()


@needs_root
@pytest.mark.parametrize("target", ["/nowhere", "/etc", "proj"])
def test_a_link_of_another_user_above_is_not_waited_for(run: Path, target: str) -> None:
    """By `finish`, which has not seen what was there at the start."""
    run.parent.rename(run.parent.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        require_same(str(run), "train-1")
    _link(run.parent, target)
    with pytest.raises(
        TakenOverError, match=f"{run.parent} is in its way, a link that belongs to user nobody"
    ):
        require_same(str(run), "train-1")
