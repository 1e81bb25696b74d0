"""What is remembered of nodes, as files."""

from __future__ import annotations

import errno
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError
from hpc_elastic.store import files
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.node_ledger import foreign_folder, place_for, read_ledger, remember

LOST = NodeEvent("n1", Fault.NODE_LOSS, 1000.5, "run-7", "run", "vanished in round 2")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return where the nodes of the runs below a directory are remembered."""
    return Path(place_for(str(tmp_path / "run")))


def test_what_was_written_is_read(place: Path, tmp_path: Path) -> None:
    """Events come back as they were, oldest first; the directory is its owner's alone."""
    later = LOST._replace(at=2000.0, fault=Fault.UNFIT, detail="no GPU")
    assert [later, LOST] == remember(str(place), [later, LOST])
    assert (LOST, later) == read_ledger(str(place)).events
    assert tmp_path / ".hpc_elastic" / "nodes" == place
    for directory in (place, place.parent):
        assert 0o700 == stat.S_IMODE(directory.stat().st_mode)


def test_nothing_is_made_for_nothing(place: Path) -> None:
    """Without events there is no directory, and reading makes none."""
    assert [] == remember(str(place), [])
    assert () == read_ledger(str(place)).events
    assert not place.parent.exists()


def test_an_event_is_written_once(place: Path) -> None:
    """Who tells of the same event again changes nothing."""
    remember(str(place), [LOST])
    assert [] == remember(str(place), [LOST._replace(detail="told otherwise")])
    assert (LOST,) == read_ledger(str(place)).events


def test_many_may_write_at_once(place: Path) -> None:
    """Writers of the same and of other events do each other no harm."""
    events = [LOST._replace(host=f"n{number}") for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: remember(str(place), events), range(8)))
    assert sorted(events) == sorted(read_ledger(str(place)).events)
    assert 20 == len(os.listdir(place))


def test_old_events_are_not_opened(place: Path) -> None:
    """The time is in the name."""
    remember(str(place), [LOST, LOST._replace(at=3000.0)])
    next(place.glob("1000.*")).write_text("not read")
    ledger = read_ledger(str(place), since=2000)
    assert ([3000.0], ()) == ([event.at for event in ledger.events], ledger.damaged)
    assert 1 == len(read_ledger(str(place), since=1000).damaged)


def test_names_of_hosts_and_runs_cannot_leave_the_directory(place: Path) -> None:
    """Whatever a host or a run is called, its file is in the directory and others have other names."""
    odd = [LOST._replace(host="../../n1"), LOST._replace(host="a/b"), LOST._replace(key="../x")]
    remember(str(place), odd)
    assert 3 == len(list(place.glob("*.json")))
    assert sorted(odd) == sorted(read_ledger(str(place)).events)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2}',
        b"\xff\xfe",
        json.dumps({"format": 1, "host": "n"}).encode(),
        json.dumps({"format": 2, **LOST._asdict()}).encode(),
        json.dumps({"format": 1, **LOST._asdict(), "fault": "new"}).encode(),
        b" " * (1 << 17),
    ],
    ids=[
        "empty",
        "cut",
        "other",
        "newer",
        "binary",
        "incomplete",
        "whole-but-newer",
        "unknown-fault",
        "long",
    ],
)
def test_a_damaged_record_is_named_and_passed_over(place: Path, data: bytes) -> None:
    """The others count all the same."""
    remember(str(place), [LOST])
    (place / "1500.n2.unfit.x.json").write_bytes(data)
    ledger = read_ledger(str(place))
    assert ((LOST,), ("1500.n2.unfit.x.json",)) == ledger


def test_links_and_pipes_are_not_followed(place: Path, tmp_path: Path) -> None:
    """A record is a plain file in the directory itself."""
    remember(str(place), [LOST])
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_bytes(next(place.glob("*.json")).read_bytes())
    (place / "1500.n2.unfit.x.json").symlink_to(elsewhere)
    os.mkfifo(place / "1501.n2.unfit.x.json")
    ledger = read_ledger(str(place))
    assert (LOST,) == ledger.events
    assert 2 == len(ledger.damaged)


def test_a_directory_that_others_can_write_to_is_refused(place: Path) -> None:
    """Neither read nor written; the error says what to do."""
    remember(str(place), [LOST])
    place.chmod(0o777)
    for act in (lambda: remember(str(place), [LOST]), lambda: read_ledger(str(place))):
        with pytest.raises(RunDirError, match="others can write to it") as caught:
            act()
        assert "HPC_ELASTIC_LEDGER" in str(caught.value)


@needs_root
@pytest.mark.parametrize("level", [0, 1], ids=["nodes", "above"])
def test_a_directory_of_somebody_else_is_refused(place: Path, level: int) -> None:
    """Also the one above, through which it could be replaced."""
    remember(str(place), [LOST])
    os.chown((place, place.parent)[level], 65534, 65534)
    with pytest.raises(RunDirError, match="belongs to user 65534") as caught:
        read_ledger(str(place))
    assert "give a directory of your own with HPC_ELASTIC_LEDGER" in str(caught.value)
    with pytest.raises(RunDirError, match="belongs to user 65534"):
        remember(str(place), [LOST._replace(at=5.0)])


@needs_root
def test_what_somebody_else_remembers_is_not_nothing(place: Path) -> None:
    """Nobody can see what is in their directory, so that it looks as if nothing were there."""
    place.parent.mkdir(mode=0o700)
    os.chown(place.parent, 65534, 65534)
    with pytest.raises(RunDirError, match="belongs to user 65534"):
        read_ledger(str(place))


@needs_root
def test_a_link_of_somebody_else_is_refused(place: Path, tmp_path: Path) -> None:
    """A foreign link in its place would tell others where to write."""
    place.parent.mkdir(mode=0o700)
    (tmp_path / "mine").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "mine")
    os.lchown(place, 65534, 65534)
    with pytest.raises(RunDirError, match="belongs to user 65534"):
        remember(str(place), [LOST])


def test_a_long_reason_is_cut(place: Path) -> None:
    """A record stays small."""
    remember(str(place), [LOST._replace(detail="x" * 100_000)])
    assert 500 == len(read_ledger(str(place)).events[0].detail)


@needs_root
def test_where_the_usual_place_is_taken_another_is_found_again(tmp_path: Path) -> None:
    """Somebody who makes it first, and the next one, too, does not keep nodes from being remembered."""
    run = str(tmp_path / "run")
    own = f".hpc_elastic-{os.geteuid()}"
    for name, place in ((".hpc_elastic", own), (own, f"{own}-1")):
        (tmp_path / name).mkdir(mode=0o700)
        os.chown(tmp_path / name, 65534, 65534)
        assert f"{tmp_path}/{place}/nodes" == place_for(run)
    remember(place_for(run), [LOST])
    (tmp_path / ".hpc_elastic").rmdir()  # what is known stays known
    assert [LOST] == list(read_ledger(place_for(str(tmp_path / "later"))).events)


@needs_root
def test_it_is_told_that_the_usual_place_is_taken(tmp_path: Path) -> None:
    """With whose it is; a place that the user has chosen needs no word."""
    run = str(tmp_path / "run")
    assert "" == foreign_folder(place_for(run))
    assert "" == foreign_folder(str(tmp_path / "chosen" / "nodes"))
    assert "" == foreign_folder(
        str(tmp_path / f".hpc_elastic-{os.geteuid()}" / "nodes")
    )  # nobody has the usual
    (tmp_path / ".hpc_elastic").mkdir()
    os.chown(tmp_path / ".hpc_elastic", 65534, 65534)
    said = f"{tmp_path}/.hpc_elastic belongs to user nobody, so nodes are remembered in "
    assert f"{said}{tmp_path}/.hpc_elastic-{os.geteuid()}" == foreign_folder(place_for(run))
    assert "" == foreign_folder(str(tmp_path / "chosen" / "nodes"))


def test_other_names_in_the_directory_are_passed_over(place: Path) -> None:
    """Nobody of us made them, and an event as old as wanted is read."""
    remember(str(place), [LOST])
    (place / "notes").write_text("{")
    ledger = read_ledger(str(place))
    assert ((LOST,), ()) == (ledger.events, tuple(ledger.damaged))


def test_no_name_is_looked_up_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may go on for long not to see what was looked for in vain."""
    real, looked = os.lstat, []

    def note(path: str) -> os.stat_result:
        looked.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(os, "lstat", note)
    for there in ([], [".hpc_elastic"]):
        assert f"{tmp_path}/.hpc_elastic/nodes" == place_for(str(tmp_path / "run"))
        assert there == looked
        (tmp_path / ".hpc_elastic").mkdir(exist_ok=True)


def test_a_place_that_is_gone_since_it_was_listed_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next free name is taken."""
    (tmp_path / ".hpc_elastic").mkdir()

    def gone(path: str) -> os.stat_result:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "lstat", gone)
    assert f"{tmp_path}/.hpc_elastic-{os.geteuid()}/nodes" == place_for(str(tmp_path / "run"))


def test_beside_runs_that_are_not_there_yet_the_place_is_the_usual_one(tmp_path: Path) -> None:
    """The first event makes it, with the directories above it."""
    place = place_for(str(tmp_path / "runs" / "run"))
    assert f"{tmp_path}/runs/.hpc_elastic/nodes" == place
    assert [LOST] == remember(place, [LOST])
    assert (LOST,) == read_ledger(place).events


def test_a_place_that_the_user_has_chosen_may_be_in_a_directory_of_all(tmp_path: Path) -> None:
    """Only the place itself is the user's alone; the usual one is closed with the directory above it."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    place = str(tmp_path / "shared" / "nodes")
    assert [LOST] == remember(place, [LOST])
    assert (LOST,) == read_ledger(place).events
    (tmp_path / ".hpc_elastic").mkdir()
    (tmp_path / ".hpc_elastic").chmod(0o777)
    with pytest.raises(RunDirError, match="others can write to it"):
        remember(str(tmp_path / ".hpc_elastic" / "nodes"), [LOST])


def test_an_event_that_is_gone_since_it_was_listed_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as damaged, and the others are read."""
    remember(str(place), [LOST])
    real = files.list_names
    monkeypatch.setattr(files, "list_names", lambda directory: [*real(directory), "1500.n2.unfit.x.json"])
    assert ((LOST,), ("1500.n2.unfit.x.json",)) == read_ledger(str(place))
