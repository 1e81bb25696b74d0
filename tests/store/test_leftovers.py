"""Sweeping away what dead writers left, and nothing else."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.store import files, leftovers
from hpc_elastic.store.kv.store import open_scope
from hpc_elastic.store.leftovers import (
    Writer,
    is_gone,
    sweep,
    sweep_logs,
    sweep_names,
    sweep_rounds,
    tidy,
    writer_of,
)
from hpc_elastic.store.shared_dir import SharedDirStore

HOST, NAMESPACE = os.uname().nodename, files.pid_namespace()
REPOSITORY = Path(__file__).parents[2]
LEAVE = "import sys; from hpc_elastic.store import files; print(files.private_name(sys.argv[1]))"


def _of_a_dead_process(directory: Path) -> Path:
    """Make a private file whose writer has ended."""
    argv = [sys.executable, "-c", LEAVE, str(directory)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    named = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout.strip()
    Path(named).write_bytes(b"torn")
    return Path(named)


def _of_another_host(directory: Path, age_s: float, name: str = ".tmp.elsewhere.17.1.effffffc-12") -> Path:
    """Make a private file of another machine, this old by the clock of the file system."""
    path = directory / name
    path.write_bytes(b"torn")
    made = path.stat().st_mtime
    os.utime(path, (made - age_s, made - age_s))
    return path


def test_what_the_dead_of_this_host_left_goes_at_once(tmp_path: Path) -> None:
    """The process that the name tells is gone."""
    dead = _of_a_dead_process(tmp_path)
    assert ((str(dead),), 0, ()) == sweep([str(tmp_path)])
    assert [] == os.listdir(tmp_path)


def test_what_the_living_write_stays(tmp_path: Path) -> None:
    """Files of this process, and young ones of other hosts, are theirs."""
    mine = Path(files.private_name(str(tmp_path)))
    mine.touch()
    theirs = _of_another_host(tmp_path, age_s=leftovers.AGE_S / 2)
    assert ((), 2, ()) == sweep([str(tmp_path)])
    assert {mine.name, theirs.name} == set(os.listdir(tmp_path))


@pytest.mark.parametrize(
    "name", [".tmp.elsewhere.17.1.effffffc-12", ".tmp.node1.17.1", ".tmp.", ".tmp.a.b.c.d"]
)
def test_what_is_old_goes_whoever_made_it(tmp_path: Path, name: str) -> None:
    """By the clock of the file system alone; also what an unknown program named."""
    old = _of_another_host(tmp_path, leftovers.AGE_S + 60, name)
    assert ((str(old),), 0, ()) == sweep([str(tmp_path)])
    assert [] == os.listdir(tmp_path)


def test_names_and_other_hidden_files_stay_however_old(tmp_path: Path) -> None:
    """Records, marks, names made by the file system, unfinished checkpoints, and directories."""
    names = ["00000001", ".nfs00012", ".last.pt.unfinished-1-2-3", "tmp.a"]
    for name in names:
        _of_another_host(tmp_path, 10 * leftovers.AGE_S, name)
    (tmp_path / ".tmp.directory").mkdir()
    os.utime(tmp_path / ".tmp.directory", (0, 0))
    assert () == sweep([str(tmp_path)]).removed
    assert {*names, ".tmp.directory"} == set(os.listdir(tmp_path))


def test_a_pid_of_another_container_tells_nothing() -> None:
    """The same host name and pid in another namespace is somebody else, perhaps alive."""
    dead = Writer(HOST, 2**22 + 1, NAMESPACE)  # above the largest pid
    assert is_gone(dead, HOST, NAMESPACE)
    assert not is_gone(dead._replace(namespace="1"), HOST, NAMESPACE)
    assert not is_gone(dead._replace(host="elsewhere"), HOST, NAMESPACE)
    assert not is_gone(dead._replace(namespace="0"), HOST, "0")
    assert not is_gone(dead._replace(pid=os.getpid()), HOST, NAMESPACE)
    assert not is_gone(dead._replace(pid=10**30), HOST, NAMESPACE)
    assert not is_gone(None, HOST, NAMESPACE)


def test_private_names_tell_their_writer(tmp_path: Path) -> None:
    """Host names may have dots."""
    assert Writer(HOST, os.getpid(), NAMESPACE) == writer_of(os.path.basename(files.private_name("/x")))
    assert Writer("n1.cluster.org", 17, "effffffc") == writer_of(".tmp.n1.cluster.org.17.3.effffffc-0a1b")


@pytest.mark.parametrize(
    "name",
    [
        ".tmp.n1.17.3.effffffc",
        ".tmp.n1.0.3.effffffc-0a",
        ".tmp.n1.-1.3.effffffc-0a",
        ".tmp.n1.\u0661\u0667.3.effffffc-0a",
        ".tmp.n1.².3.effffffc-0a",
        ".tmp.n1.x.3.effffffc-0a",
        ".tmp.17.3.effffffc-0a",
    ],
)
def test_a_name_that_tells_no_writer_is_nobodys(name: str) -> None:
    """Only what was named by this package tells one; the process 1 of a container may be one."""
    assert writer_of(name) is None
    assert Writer("n1", 1, "a") == writer_of(".tmp.n1.1.3.a-0a")


def test_a_file_as_old_as_allowed_stays(tmp_path: Path) -> None:
    """Until it is older."""
    now = leftovers._server_time(str(tmp_path))
    assert [] == os.listdir(tmp_path)
    young, old = tmp_path / ".tmp.young", tmp_path / ".tmp.old"
    for path, written in ((young, now + 60), (old, now - 60)):
        path.touch()
        os.utime(path, (written, written))
    assert [old.name] == leftovers._old(str(tmp_path), [old.name, young.name], 30.0)


def test_the_clock_is_read_without_a_descriptor_that_stays(tmp_path: Path) -> None:
    """A sweep is done again and again as long as the agent lives."""
    _of_another_host(tmp_path, age_s=1.0)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        sweep([str(tmp_path)])
    assert before == os.listdir("/proc/self/fd")


def test_what_nodes_told_goes_in_bounds(run_paths: RunPaths) -> None:
    """Both directories together; the next sweep goes on with the rest."""
    Path(run_paths.nodes).mkdir(exist_ok=True)
    for number in range(3):
        Path(run_paths.steps, f"1+n{number}").touch()
        Path(run_paths.nodes, f"n{number}.7.1.json").touch()
    assert [4, 2, 0] == [len(sweep_names(run_paths, 2, most=4).removed) for _ in range(3)]


def test_work_is_bounded(tmp_path: Path) -> None:
    """What is too much for one sweep is left to the next."""
    for number in range(5):
        _of_another_host(tmp_path, 2 * leftovers.AGE_S, f".tmp.elsewhere.17.{number}.x-1")
    assert (2, 3) == (len((swept := sweep([str(tmp_path)], most=2)).removed), swept.kept)
    assert (3, 0) == (len((swept := sweep([str(tmp_path)])).removed), swept.kept)


def test_errors_are_told_and_end_nothing(tmp_path: Path) -> None:
    """A place that is no directory is named, an absent one is passed over, the others are swept."""
    (tmp_path / "file").touch()
    good = tmp_path / "good"
    good.mkdir()
    old = _of_another_host(good, 2 * leftovers.AGE_S)
    swept = sweep([str(tmp_path / "file"), str(tmp_path / "absent"), str(good)])
    assert ((str(old),), (f"{tmp_path / 'file'}: Not a directory",)) == (swept.removed, swept.errors)


def test_all_places_of_a_run_are_swept(run_paths: RunPaths) -> None:
    """Wherever the run makes private files, leftovers are found."""
    store = SharedDirStore(run_paths.root)
    assert store.append("journal", 1, b"one")
    places = leftovers.run_directories(run_paths)
    assert os.path.join(run_paths.journal, "000000") in places
    for place in places:
        _of_another_host(Path(place), 2 * leftovers.AGE_S)
    assert (len(places), 0, ()) == (len((swept := sweep(places)).removed), *swept[1:])
    assert [(1, b"one")] == store.read_after("journal", 0)


def _scope(kv: Path, name: str) -> Path:
    (kv / name / "deep").mkdir(parents=True)
    for number in range(3):
        (kv / name / "deep" / str(number)).touch()
    return kv / name


def test_scopes_of_old_rounds_go(run_paths: RunPaths) -> None:
    """With all that is in them; those to keep, and what is no scope, stay."""
    kv = Path(run_paths.kv)
    gone, kept = _scope(kv, "round-1"), _scope(kv, "round-2")
    (kv / "round-0").touch()
    (kv / "round-00").symlink_to(kept)
    assert ((str(gone),), ()) == (sweep_rounds(run_paths, 2)[::2])
    assert ["round-0", "round-00", "round-2"] == sorted(os.listdir(kv))
    assert ["0", "1", "2"] == sorted(os.listdir(kept / "deep"))


def test_only_rounds_that_are_over_go(run_paths: RunPaths) -> None:
    """Scopes that users named stay, whatever they are called."""
    for scope in ("round-9", "round-10", "round-11", "round-x", "mine", "round-"):
        open_scope(run_paths.root, scope).set("key", "value")
    swept = leftovers.sweep_rounds(run_paths, 11)
    assert {"round-9", "round-10"} == {os.path.basename(path) for path in swept.removed}
    assert ["mine", "round-", "round-11", "round-x"] == sorted(os.listdir(run_paths.kv))
    assert b"value" == open_scope(run_paths.root, "round-11").get("key")


def test_a_run_is_tidied_in_one_call(run_paths: RunPaths) -> None:
    """Scopes of rounds that are over, and private files of the dead, also in the scopes that stay."""
    for scope in ("round-1", "round-2"):
        open_scope(run_paths.root, scope).set("key", "value")
    dead = [_of_a_dead_process(Path(place)) for place in (run_paths.nodes, f"{run_paths.kv}/round-2")]
    assert {f"{run_paths.kv}/round-1", *map(str, dead)} == set(leftovers.tidy(run_paths, 2).removed)
    assert ((), 0, ()) == leftovers.tidy(run_paths, 2)


def test_what_nodes_told_for_old_rounds_goes(run_paths: RunPaths) -> None:
    """Steps and offers of rounds that are over; everything else stays."""
    for name in ("1+n1.7+30", "2+n1.7+-1", "odd"):
        Path(run_paths.steps, name).touch()
    for name in ("n1.7.1.json", "n1.7.2.json", "run_id.json", "batch.beat"):
        Path(run_paths.nodes, name).touch()
    removed = {os.path.basename(path) for path in leftovers.tidy(run_paths, 2).removed}
    assert {"1+n1.7+30", "n1.7.1.json"} == removed


def test_links_in_a_scope_are_not_followed(run_paths: RunPaths, tmp_path: Path) -> None:
    """What they point to stays."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.tex").touch()
    scope = _scope(Path(run_paths.kv), "round-1")
    (scope / "link").symlink_to(tmp_path / "elsewhere")
    sweep_rounds(run_paths, 2)
    assert [] == os.listdir(run_paths.kv)
    assert ["thesis.tex"] == os.listdir(tmp_path / "elsewhere")


def test_a_large_scope_goes_in_parts(run_paths: RunPaths) -> None:
    """Each sweep takes so much; a scope counts as gone when nothing is left of it."""
    scope = _scope(Path(run_paths.kv), "round-1")
    assert ((), 1) == sweep_rounds(run_paths, 2, most=2)[:2]
    assert 1 == len(os.listdir(scope / "deep"))
    assert (str(scope),) == sweep_rounds(run_paths, 2, most=3).removed


def test_never_more_goes_than_one_sweep_may_take(run_paths: RunPaths) -> None:
    """Files and directories count alike."""

    def things() -> int:
        return sum(len(folders) + len(names) for _, folders, names in os.walk(run_paths.kv))

    _scope(Path(run_paths.kv), "round-1")
    while before := things():
        sweep_rounds(run_paths, 2, most=1)
        assert before - 1 == things()


def test_scopes_that_cannot_be_listed_are_told(run_paths: RunPaths) -> None:
    """And end nothing."""
    Path(run_paths.kv).touch()
    swept = sweep_rounds(run_paths, 2)
    assert ((), 0, (f"{run_paths.kv}: Not a directory",)) == swept


def test_no_scopes_are_no_error(run_paths: RunPaths) -> None:
    """A run without a key-value store has none."""
    assert ((), 0, ()) == sweep_rounds(run_paths, 2)


def test_sockets_are_no_private_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only regular files are swept by age."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(".tmp.a.1.2.3-4")
        assert () == sweep([str(tmp_path)], age_s=-1).removed


def _logs(paths: RunPaths, *names: str) -> None:
    for name in names:
        os.makedirs(os.path.join(paths.logs, name, "0"))
        Path(paths.logs, name, "0", "stdout.log").write_text("x")


def test_only_the_logs_of_old_rounds_go(run_paths: RunPaths) -> None:
    """Also where ranks hung in them; agents' logs and what else is there stay."""
    old = ("attempt_1", "attempt_3", "hang-3", "hang-3.2")
    stays = ("attempt_4", "attempt_30", "hang-4", "attempt_", "attempt_2b", "1")
    _logs(run_paths, *old, *stays)
    Path(run_paths.logs, "attempt_2").touch()
    swept = sweep_logs(run_paths, 3)
    assert sorted(os.path.join(run_paths.logs, name) for name in old) == sorted(swept.removed)
    assert {*stays, "attempt_2", "agents"} == set(os.listdir(run_paths.logs))


@pytest.mark.parametrize(("keep", "oldest"), [(0, 1), (1, 6), (2, 5), (5, 2), (6, 1)])
def test_the_logs_of_so_many_rounds_stay(run_paths: RunPaths, keep: int, oldest: int) -> None:
    """The newest of them may still have workers."""
    _logs(run_paths, *(f"attempt_{number}" for number in range(1, 7)))
    tidy(run_paths, 6, keep)
    stays = {f"attempt_{number}" for number in range(oldest, 7)}
    assert {*stays, "agents"} == set(os.listdir(run_paths.logs))


def test_a_sweep_of_logs_is_bounded(run_paths: RunPaths) -> None:
    """The next one goes on with the rest."""
    _logs(run_paths, "attempt_1", "attempt_2")
    swept = sweep_logs(run_paths, 2, most=4)
    assert ((os.path.join(run_paths.logs, "attempt_1"),), 1) == (swept.removed, swept.kept)
    assert 1 == len(sweep_logs(run_paths, 2).removed)
    assert ["agents"] == os.listdir(run_paths.logs)


def _refuse(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Let the file system refuse one of its operations."""

    def refuse(path: str, *_args: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, name, refuse)


def test_told_names_that_cannot_be_listed_are_told(run_paths: RunPaths) -> None:
    """The other directory is swept all the same."""
    Path(run_paths.steps).rmdir()
    Path(run_paths.steps).touch()
    Path(run_paths.nodes).mkdir(exist_ok=True)
    offer = Path(run_paths.nodes) / "n1.7.1.json"
    offer.touch()
    swept = sweep_names(run_paths, 2)
    assert (f"{run_paths.steps}: Not a directory",) == swept.errors
    assert not offer.exists()


def test_nobody_is_called_old_by_a_clock_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the dead of this host left goes all the same."""
    old, dead = _of_another_host(tmp_path, 2 * leftovers.AGE_S), _of_a_dead_process(tmp_path)
    _refuse(monkeypatch, "open", errno.EROFS)
    told = f"the clock of the file system of {tmp_path} cannot be read: Read-only file system"
    assert ((str(dead),), 1, (told,)) == sweep([str(tmp_path)])
    assert old.exists()


def test_private_files_that_cannot_be_removed_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count as kept."""
    dead = _of_a_dead_process(tmp_path)
    _refuse(monkeypatch, "unlink", errno.EROFS)
    assert ((), 1, (f"{dead}: Read-only file system",)) == sweep([str(tmp_path)])


def test_what_cannot_be_removed_counts_for_nothing(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is tried and told, however few may go in one sweep."""
    scope = Path(run_paths.kv) / "round-1"
    scope.mkdir(parents=True)
    for name in ("a", "b"):
        (scope / name).touch()
    _refuse(monkeypatch, "unlink", errno.EROFS)
    swept = sweep_rounds(run_paths, 2, most=1)
    files_told = {f"{scope / name}: Read-only file system" for name in ("a", "b")}
    assert ((), 1) == swept[:2]
    assert {*files_told, f"{scope}: Directory not empty"} == set(swept.errors)


def test_what_somebody_else_removes_counts_for_nothing(
    run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no error, and takes nothing of what one sweep may remove."""
    scope = Path(run_paths.kv) / "round-1"
    scope.mkdir(parents=True)
    for name in ("a", "b"):
        (scope / name).touch()
    real = os.unlink

    def overtaken(path: str) -> None:
        real(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "unlink", overtaken)
    assert ((str(scope),), 0, ()) == sweep_rounds(run_paths, 2, most=1)


def test_a_file_that_is_gone_is_not_old(tmp_path: Path) -> None:
    """Nobody says when it was written."""
    assert [] == leftovers._old(str(tmp_path), [".tmp.gone"], 0.0)
