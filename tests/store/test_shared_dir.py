"""The store in a shared directory keeps the contract, also against races, crashes and full disks."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError, UnfitFileError
from hpc_elastic.paths import RunPaths
from hpc_elastic.store import files
from hpc_elastic.store.files import PAUSES_S
from hpc_elastic.store.mount import Mount
from hpc_elastic.store.shared_dir import SharedDirStore, record_name, segment_name
from hpc_elastic.store.watch import Watch
from hpc_elastic.testing.clock import FakeClock
from tests.store.contract import StoreContract

RACERS = 6
NUMBERS = 40
REPOSITORY = Path(__file__).parents[2]


class TestSharedDirStore(StoreContract):
    """`SharedDirStore` is a `Store`."""

    @pytest.fixture
    def store(self, shared_dir_store: SharedDirStore) -> SharedDirStore:
        """Return a store in a fresh run directory."""
        return shared_dir_store


@pytest.mark.timeout(120)
def test_a_record_that_is_none_is_no_store_that_is_away(shared_dir_store: SharedDirStore) -> None:
    """Whoever waits for a store to come back would wait for ever."""
    assert shared_dir_store.append("journal", 1, b"x")
    os.mkfifo(os.path.join(shared_dir_store.root, "journal", segment_name(1), record_name(2)))
    os.mkfifo(os.path.join(shared_dir_store.root, "offer"))
    with pytest.raises(UnfitFileError, match=f"{record_name(2)}: it is a FIFO"):
        shared_dir_store.read_after("journal", 0)
    with pytest.raises(UnfitFileError, match="offer: it is a FIFO"):
        shared_dir_store.get(".", "offer")
    with pytest.raises(UnfitFileError, match=f"{record_name(2)}: it is a FIFO"):
        shared_dir_store.read_after("journal", 1)


# Where a directory's times advance in steps, as on NFS 3


@pytest.fixture
def coarse_store(shared_dir_store: SharedDirStore) -> SharedDirStore:
    """Return a store that takes its directory for one on NFS 3."""
    shared_dir_store._is_coarse = True
    return shared_dir_store


def test_a_directory_changes_again_after_a_record(coarse_store: SharedDirStore) -> None:
    """Who listed it just before the record was there sees that it has changed since."""
    assert coarse_store.append("journal", 1, b"x")
    assert not coarse_store.append("journal", 1, b"late")
    segment = Path(coarse_store.root, "journal", segment_name(1))
    made_ns = (segment / record_name(1)).stat().st_ctime_ns
    assert segment.stat().st_mtime_ns - made_ns > 15e6


def test_a_directory_changes_again_after_a_mark(coarse_store: SharedDirStore) -> None:
    """The same for a name that takes the place of none."""
    coarse_store.mark("members", "a")
    members = Path(coarse_store.root, "members")
    assert members.stat().st_mtime_ns - (members / "a").stat().st_ctime_ns > 15e6


def test_a_directory_changes_again_after_one_in_it(coarse_store: SharedDirStore) -> None:
    """The same for directories that are made; one that is there changes nothing."""
    root = Path(coarse_store.root)
    coarse_store.make_directory("made/late")
    shown = (root / "made").stat().st_mtime_ns
    assert shown - (root / "made" / "late").stat().st_ctime_ns > 15e6
    coarse_store.make_directory("made/late")
    assert shown == (root / "made").stat().st_mtime_ns


def test_who_waits_has_the_directory_read_anew(coarse_store: SharedDirStore) -> None:
    """A waiting client changes the directory itself, and leaves nothing behind."""
    members = Path(coarse_store.root, "members")
    before = members.stat().st_mtime_ns
    assert [] == coarse_store.wait("members", [], 0.4)
    assert before < members.stat().st_mtime_ns
    assert [] == list(members.iterdir())


def test_who_waits_changes_the_directory_once_in_a_second(
    coarse_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at each look."""
    clock, stirred = FakeClock(), []
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock.monotonic())
    monkeypatch.setattr(Watch, "wait", lambda _, seconds: clock.advance(seconds))
    monkeypatch.setattr(files, "stir", lambda _: stirred.append(clock.monotonic()))
    coarse_store.wait("members", [], 20.0)
    assert len(stirred) in (19, 20)


def test_who_waits_for_a_moment_changes_nothing(coarse_store: SharedDirStore) -> None:
    """Nor does anybody where a directory's times are fine."""
    coarse_store.make_directory("members")
    members = Path(coarse_store.root, "members")
    before = members.stat().st_mtime_ns
    coarse_store.wait("members", [], 0.02)
    assert before == members.stat().st_mtime_ns
    coarse_store._is_coarse = False
    coarse_store.wait("members", [], 0.4)
    assert before == members.stat().st_mtime_ns


def test_who_waits_makes_the_directory(shared_dir_store: SharedDirStore) -> None:
    """A name that is looked for in vain again and again would stay unseen."""
    assert [] == shared_dir_store.wait("late/one", [], 0)
    assert Path(shared_dir_store.root, "late", "one").is_dir()


def test_who_has_lost_a_record_waits_for_no_step(
    coarse_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the winner has something to show; the others go on at once."""
    slept = _note_sleeps(monkeypatch)
    assert coarse_store.append("journal", 1, b"x")
    waited = len(slept)
    assert waited > 0
    assert not coarse_store.append("journal", 1, b"late")
    assert waited == len(slept)


@pytest.mark.parametrize(("mount", "steps"), [(Mount("/", "nfs"), 1), (Mount("/", "nfs4"), 0)])
def test_the_mount_tells_whether_times_advance_in_steps(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch, mount: Mount, steps: int
) -> None:
    """A store on NFS 3 shows its marks; the mount is asked once."""
    asked = []

    def mount_at(path: str) -> Mount:
        asked.append(path)
        return mount

    monkeypatch.setattr("hpc_elastic.store.mount.mount_at", mount_at)
    slept = _note_sleeps(monkeypatch)
    shared_dir_store.make_directory("members")
    slept.clear()
    for name in ("a", "b"):
        shared_dir_store.mark("members", name)
    assert (2 * steps, [shared_dir_store.root]) == (len(slept), asked)


def _note_sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: slept.append(seconds))
    return slept


@pytest.mark.parametrize(("wait_s", "most"), [(20.0, 0.05), (300.0, 0.5)])
def test_who_waits_long_looks_more_rarely(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch, wait_s: float, most: float
) -> None:
    """The pauses between two looks grow, and once more after half a minute."""
    clock, pauses = FakeClock(), []

    def wait(_: Watch, seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock.monotonic())
    monkeypatch.setattr(Watch, "wait", wait)
    assert [] == shared_dir_store.wait("members", [], wait_s)
    assert pauses[:-1] == sorted(pauses[:-1])
    assert (0.001, most) == (pauses[0], max(pauses))
    assert wait_s == pytest.approx(sum(pauses))


def test_all_segments_are_read_at_once(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has read nothing yet gets the whole log, from the first record on or from any other."""
    monkeypatch.setattr("hpc_elastic.store.shared_dir.SEGMENT_RECORDS", 4)
    for number in range(1, 14):
        assert shared_dir_store.append("journal", number, b"%d" % number)
    for after in range(14):
        expected = [(number, b"%d" % number) for number in range(after + 1, 14)]
        assert expected == shared_dir_store.read_after("journal", after)


def test_a_record_in_another_ones_segment_is_none(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read from its own place, whatever somebody has copied."""
    monkeypatch.setattr("hpc_elastic.store.shared_dir.SEGMENT_RECORDS", 4)
    for number in range(1, 6):
        assert shared_dir_store.append("journal", number, b"%d" % number)
    journal = Path(shared_dir_store.root, "journal")
    (journal / segment_name(0) / record_name(4)).write_bytes(b"a copy")
    assert (4, b"4") == shared_dir_store.read_after("journal", 0)[3]


def test_a_reader_looks_for_no_segment_that_is_not_there(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may go on for long not to see what was looked for in vain."""
    monkeypatch.setattr("hpc_elastic.store.shared_dir.SEGMENT_RECORDS", 4)
    real, looked = os.open, []

    def note(path: str, *arguments: int) -> int:
        looked.append(os.path.basename(path))
        return real(path, *arguments)

    shared_dir_store.make_directory("journal")
    monkeypatch.setattr(os, "open", note)
    assert [] == shared_dir_store.read_after("journal", 0)
    assert ["journal"] == looked
    for number in (1, 2):
        assert shared_dir_store.append("journal", number, b"x")
    looked.clear()
    assert [(2, b"x")] == shared_dir_store.read_after("journal", 1)
    assert ["000000", record_name(2)] == looked
    assert shared_dir_store.append("journal", 3, b"x")
    looked.clear()
    assert [] == shared_dir_store.read_after("journal", 3)
    assert ["journal"] == looked
    looked.clear()
    assert not shared_dir_store.is_removed("journal", 4)
    assert ["journal"] == looked


RACER = """
import os, sys
from hpc_elastic.store.shared_dir import SharedDirStore
store, me = SharedDirStore(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = [n for n in range(1, int(sys.argv[3]) + 1) if store.append("journal", n, me.encode())]
print(*won)
"""


def test_a_new_segment_is_not_looked_for_before_it_is_made(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may go on for long not to see what was looked for in vain."""
    real, missed = os.open, []

    def note(path: str, *arguments: int) -> int:
        try:
            return real(path, *arguments)
        except FileNotFoundError:
            missed.append(path)
            raise

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr("hpc_elastic.store.shared_dir.SEGMENT_RECORDS", 4)
    for number in range(1, 10):
        assert shared_dir_store.append("journal", number, b"x")
    assert ["000000"] == [os.path.basename(path) for path in missed]  # the first one of all


def test_racing_writers_have_one_winner(run_paths: RunPaths) -> None:
    """Of processes that all want each number, exactly one gets it, and the record is that one's."""
    racers = [_start_racer(run_paths.root, str(name)) for name in range(RACERS)]
    for racer in racers:
        assert racer.stdout is not None
        assert "ready\n" == racer.stdout.readline()
    won: dict[str, list[int]] = {}
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for name, racer in enumerate(racers):
        out, _ = racer.communicate()
        assert 0 == racer.returncode
        won[str(name)] = [int(number) for number in out.split()]
    assert list(range(1, NUMBERS + 1)) == sorted(number for numbers in won.values() for number in numbers)
    winners = {number: name.encode() for name, numbers in won.items() for number in numbers}
    assert sorted(winners.items()) == SharedDirStore(run_paths.root).read_after("journal", 0)
    assert not _private_files(run_paths.root)


def _start_racer(root: str, name: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", RACER, root, name, str(NUMBERS)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(argv, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _private_files(root: str) -> list[str]:
    return [name for _, _, names in os.walk(root) for name in names if name.startswith(".")]


def test_leftovers_are_invisible(shared_dir_store: SharedDirStore) -> None:
    """Private files of dead writers and names made by the file system are no records and no names."""
    store = shared_dir_store
    store.append("journal", 1, b"one")
    segment = os.path.join(store.root, "journal", segment_name(1))
    for directory in (segment, os.path.join(store.root, "members")):
        for name in (".tmp.node1.17.1", ".nfs000000000012", ".tmp.00000002"):
            Path(directory, name).write_bytes(b"torn")
    assert [(1, b"one")] == store.read_after("journal", 0)
    assert [] == store.list("members")
    assert store.append("journal", 2, b"two")


def test_a_writer_killed_after_the_link_has_won(shared_dir_store: SharedDirStore) -> None:
    """A record whose writer died before it tidied up is a record like any other."""
    store = shared_dir_store
    store.append("journal", 1, b"one")
    segment = os.path.join(store.root, "journal", segment_name(1))
    os.link(os.path.join(segment, record_name(1)), os.path.join(segment, ".tmp.node1.17.1"))
    assert not store.append("journal", 1, b"again")
    assert [(1, b"one")] == store.read_after("journal", 0)


def test_a_gap_ends_what_is_read(shared_dir_store: SharedDirStore) -> None:
    """A record that is visible before its predecessor (a stale listing) waits for it."""
    store = shared_dir_store
    store.append("journal", 1, b"one")
    store.append("journal", 3, b"three")
    assert [(1, b"one")] == store.read_after("journal", 0)
    store.append("journal", 2, b"two")
    assert [(2, b"two"), (3, b"three")] == store.read_after("journal", 1)


def test_a_record_that_is_listed_before_it_can_be_opened_ends_what_is_read(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems may show the name first; the next look gets the record and those after it."""
    for number in (1, 3):
        assert shared_dir_store.append("journal", number, b"%d" % number)
    real, early = files.list_names, record_name(2)

    def list_names(directory: str) -> list[str]:
        found = real(directory)
        return sorted({*found, early}) if record_name(1) in found else found

    monkeypatch.setattr(files, "list_names", list_names)
    assert [(1, b"1")] == shared_dir_store.read_after("journal", 0)
    assert shared_dir_store.append("journal", 2, b"2")
    assert [(2, b"2"), (3, b"3")] == shared_dir_store.read_after("journal", 1)


def test_a_removed_record_is_told_from_the_next_one(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is removed if there are later ones, in its segment or another; the next one is not."""
    monkeypatch.setattr("hpc_elastic.store.shared_dir.SEGMENT_RECORDS", 4)
    assert not shared_dir_store.is_removed("journal", 1)
    for number in range(1, 7):
        assert shared_dir_store.append("journal", number, b"x")
    assert not any(shared_dir_store.is_removed("journal", number) for number in range(1, 8))
    for number in (2, 3, 5):
        os.unlink(os.path.join(shared_dir_store.root, "journal", segment_name(number), record_name(number)))
        assert shared_dir_store.is_removed("journal", number)


def test_a_record_may_come_into_sight_late(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for with ever longer pauses, once in a process, before it counts as removed."""
    store, slept, late = shared_dir_store, _note_sleeps(monkeypatch), 2
    segment = Path(store.root, "journal", segment_name(1))
    for number in (4, 5):
        assert store.append("journal", number, b"x")
    slept.clear()
    assert store.is_removed("journal", 3)
    assert store.is_removed("journal", 3)
    assert list(PAUSES_S) == slept
    slept.clear()

    def sleep(_: SystemClock, seconds: float) -> None:
        slept.append(seconds)
        if late == len(slept):
            (segment / record_name(1)).touch()

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    assert not store.is_removed("journal", 1)
    assert list(PAUSES_S[:late]) == slept


def test_a_log_that_goes_while_a_record_is_waited_for_has_lost_no_record(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without later records it is the next one."""
    store = shared_dir_store
    assert store.append("journal", 2, b"x")
    journal = Path(store.root, "journal")
    monkeypatch.setattr(SystemClock, "sleep", lambda *_: shutil.rmtree(journal, ignore_errors=True))
    assert not store.is_removed("journal", 1)


def test_names_of_others_are_no_later_records(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in a log nor in its segment; nor is the record itself, listed before it can be opened."""
    assert shared_dir_store.append("journal", 1, b"x")
    journal = Path(shared_dir_store.root, "journal")
    (journal / "notes").mkdir()
    (journal / segment_name(1) / "notes").touch()
    assert not shared_dir_store.is_removed("journal", 2)
    real = files.list_names

    def list_names(directory: str) -> list[str]:
        found = real(directory)
        return [*found, record_name(2)] if record_name(1) in found else found

    monkeypatch.setattr(files, "list_names", list_names)
    assert not shared_dir_store.is_removed("journal", 2)


def test_a_record_that_others_may_write_is_refused(shared_dir_store: SharedDirStore) -> None:
    """Nobody could tell whose it is."""
    assert shared_dir_store.append("journal", 1, b"x")
    Path(shared_dir_store.root, "journal", segment_name(1), record_name(1)).chmod(0o622)
    with pytest.raises(UnfitFileError):
        shared_dir_store.read_after("journal", 0)


def test_a_fact_in_place_of_itself_changes_nothing(shared_dir_store: SharedDirStore) -> None:
    """It is told already, or somebody has taken it away."""
    shared_dir_store.make_directory("members")
    shared_dir_store.mark("members", "m", instead_of="m")
    assert [] == shared_dir_store.list("members")


def test_who_waits_is_woken_by_a_change_on_this_machine(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is watched before it is looked at."""
    woken: list[bool] = []

    def wait(watch: Watch, _: float) -> None:
        shared_dir_store.mark("members", "m")
        woken.append(watch.drain())

    monkeypatch.setattr(Watch, "wait", wait)
    assert ["m"] == shared_dir_store.wait("members", [], 60.0)
    assert [True] == woken


def test_a_segment_without_records_is_no_end(shared_dir_store: SharedDirStore) -> None:
    """A writer that died after it made a segment holds nobody up."""
    store = shared_dir_store
    for number in range(1, 256):
        store.append("journal", number, b"")
    os.mkdir(os.path.join(store.root, "journal", segment_name(256)))
    assert [] == store.read_after("journal", 255)
    assert store.append("journal", 256, b"next")
    assert [(256, b"next")] == store.read_after("journal", 255)


def test_values_are_private(shared_dir_store: SharedDirStore) -> None:
    """What is written can be read by its owner alone."""
    store = shared_dir_store
    store.append("journal", 1, b"one")
    store.put("nodes", "a", b"1")
    store.mark("members", "m")
    for place in (f"journal/{segment_name(1)}/{record_name(1)}", "nodes/a", "members/m"):
        assert 0 == os.stat(os.path.join(store.root, place)).st_mode & 0o077


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Make writes beyond a size fail, as they do on a full file system."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_costs_no_record(shared_dir_store: SharedDirStore) -> None:
    """A record that could not be written whole does not exist, and its number is still free."""
    store = shared_dir_store
    store.append("journal", 1, b"one")
    with _largest_file(64), pytest.raises(StoreError, match="journal/000000/00000002"):
        store.append("journal", 2, b"x" * 1000)
    assert [(1, b"one")] == store.read_after("journal", 0)
    assert not _private_files(store.root)
    assert store.append("journal", 2, b"two")


def test_a_full_disk_keeps_the_old_value(shared_dir_store: SharedDirStore) -> None:
    """A file that could not be written keeps the value it had."""
    store = shared_dir_store
    store.put("nodes", "a", b"old")
    with _largest_file(64), pytest.raises(StoreError, match="nodes/a"):
        store.put("nodes", "a", b"x" * 1000)
    assert b"old" == store.get("nodes", "a")
    assert not _private_files(store.root)


def test_errors_name_the_path(tmp_path: Path) -> None:
    """What went wrong is told with the path it went wrong at."""
    store = SharedDirStore(str(tmp_path / "gone"))
    with pytest.raises(StoreError, match="gone/nodes/a: No such file or directory"):
        store.put("nodes", "a", b"1")


def test_errors_carry_the_number(tmp_path: Path) -> None:
    """The operating system's error number comes with the error, also into another process."""
    store = SharedDirStore(str(tmp_path / "gone"))
    with pytest.raises(StoreError) as caught:
        store.put("nodes", "a", b"1")
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (errno.ENOENT, str(caught.value)) == (copied.errno, str(copied))


def test_created_files_are_private(shared_dir_store: SharedDirStore) -> None:
    """Created files and the directories made for them can be read by their owner alone."""
    assert shared_dir_store.create("a/b", "c", b"1")
    for place in ("a", "a/b", "a/b/c"):
        assert 0 == os.stat(os.path.join(shared_dir_store.root, place)).st_mode & 0o077


def test_a_full_disk_creates_nothing(shared_dir_store: SharedDirStore) -> None:
    """A file that could not be written whole does not exist, and its name is still free."""
    with _largest_file(64), pytest.raises(StoreError, match="kv/a"):
        shared_dir_store.create("kv", "a", b"x" * 1000)
    assert [] == shared_dir_store.list("kv")
    assert shared_dir_store.create("kv", "a", b"1")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_new_directory_may_be_absent_for_a_moment(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """On Gluster a directory that several clients have made at once is absent again for some milliseconds."""
    store, before = shared_dir_store, os.open
    store.make_directory("nodes")
    answers: list[int] = []

    def unsettled(path: str, flags: int, *args: int, **how: int) -> int:
        if "/nodes" in str(path) and answers:
            raise OSError(answers.pop(), "", path)
        return before(path, flags, *args, **how)

    monkeypatch.setattr(os, "open", unsettled)
    acts = (
        lambda: store.create("nodes", "created", b"x"),
        lambda: store.put("nodes", "put", b"x"),
        lambda: store.mark("nodes", "marked"),
        lambda: store.mark("nodes", "renamed", instead_of="old"),
        lambda: store.append("nodes", 1, b"x"),
    )
    for act in acts:
        answers += [number, number]
        assert act() in (True, None)
        assert answers == []
    assert ["000000", "created", "marked", "put", "renamed"] == store.list("nodes")


def test_a_new_directory_may_be_absent_for_seconds(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause is followed by one more try, also the last one."""
    slept, real = _note_sleeps(monkeypatch), os.open

    def unsettled(path: str, *arguments: int) -> int:
        if "/late" in str(path) and len(slept) <= len(PAUSES_S):
            raise FileNotFoundError(errno.ENOENT, "", path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", unsettled)
    assert shared_dir_store.create("late", "one", b"x")
    assert [0.0, *PAUSES_S] == slept
    assert b"x" == shared_dir_store.get("late", "one")


def test_a_run_that_is_gone_is_not_made_again(
    shared_dir_store: SharedDirStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes a run directory wants it gone; each call tells it at once."""
    slept = _note_sleeps(monkeypatch)
    shutil.rmtree(shared_dir_store.root)
    for act in (
        lambda: shared_dir_store.create("nodes", "one", b"x"),
        lambda: shared_dir_store.put("nodes", "one", b"x"),
        lambda: shared_dir_store.mark("nodes", "one"),
    ):
        with pytest.raises(StoreError) as told:
            act()
        assert errno.ENOENT == told.value.errno
    assert not os.path.exists(shared_dir_store.root)
    assert slept == []
