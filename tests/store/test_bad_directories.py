"""Directories that cannot be used: one clear error with the path, the reason and what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.errors import RendezvousStateError, RunDirError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.record.run_log import open_log, read_records, read_state
from hpc_elastic.store.shared_dir import SharedDirStore, _errors_named
from hpc_elastic.testing.waiting import wait_until
from tests.store.surroundings import agent, hpc_elastic, powerless, run

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")

WRITE_ALL = """
import sys
from hpc_elastic.errors import StoreError
from hpc_elastic.store.shared_dir import SharedDirStore
store = SharedDirStore(sys.argv[1])
for act in (
    lambda: store.append("journal", 1, b"1"),
    lambda: store.put("nodes", "a", b"1"),
    lambda: store.create("nodes", "b", b"1"),
    lambda: store.mark("members", "m"),
):
    try: print("done", act())
    except StoreError as error: print(error.errno, error)
"""


def _refusal(root: Path) -> RunDirError:
    with pytest.raises(RunDirError) as caught:
        prepare_run_dir(RunPaths(root))
    assert f"run directory {root}" == caught.value.where
    return caught.value


def test_a_store_that_may_not_write_says_so(run_paths: RunPaths) -> None:
    """Each operation names its file and the reason."""
    names = {"journal": "journal/000000/00000001", "nodes": "nodes/a", "members": "members/m"}
    for directory in names:
        os.chmod(os.path.join(run_paths.root, directory), 0o500)
    said = run(powerless([*hpc_elastic()[:1], "-c", WRITE_ALL, run_paths.root])).stdout.splitlines()
    expected = [*list(names.values())[:2], "nodes/b", "members/m"]
    assert said == [
        f"{errno.EACCES} {run_paths.root}/{name}: Permission denied (no permission)" for name in expected
    ]


def test_an_agent_that_may_not_write_says_so(tmp_path: Path) -> None:
    """Once, with the directory and what to do, before any worker starts."""
    (tmp_path / "run" / "logs").mkdir(0o500, parents=True)
    os.chmod(tmp_path / "run", 0o700)
    os.chmod(tmp_path, 0o500)
    for root, part in ((tmp_path, "it"), (tmp_path / "new", "it"), (tmp_path / "run", "logs")):
        done = run(powerless(agent(root, "--no-python", "true")))
        os_error = f"error: run directory {root}: {part} cannot be used: Permission denied"
        assert (2, [os_error]) == (done.returncode, done.stderr.splitlines()[:1])
        assert "fix: choose a directory on a shared file system that you can write to" in done.stderr


@pytest.mark.slow
def test_commands_that_may_not_read_say_so(run_paths: RunPaths) -> None:
    """The run directory as a whole, or the part of it that cannot be read."""
    Path(run_paths.identity).write_text(json.dumps({"format": 1, "run_id": "r"}))
    status = powerless(hpc_elastic("status", run_paths.root))
    os.chmod(run_paths.journal, 0o000)
    assert f"error: {run_paths.journal}: Permission denied (no permission)\n" == run(status).stderr
    os.chmod(run_paths.root, 0o000)
    said = run(status).stderr
    os.chmod(run_paths.root, 0o700)
    assert f"error: RUN: the run directory {run_paths.root} cannot be read\n" in said
    assert f"fix: chmod u+rwx {run_paths.root}" in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EDQUOT, "Disk quota exceeded (your quota is used up)"),
        (errno.ENOSPC, "No space left on device (the file system is full, or out of inodes)"),
        (errno.ESTALE, "Stale file handle (the file server lost the file handle)"),
        (errno.EROFS, "Read-only file system"),
    ],
)
def test_a_reason_is_told_in_words(code: int, words: str) -> None:
    """What the operating system says, what it means, and its number for programs."""
    with pytest.raises(StoreError) as caught, _errors_named("/runs/a/journal/000000/00000001"):
        raise OSError(code, os.strerror(code))
    assert (f"/runs/a/journal/000000/00000001: {words}", code) == (str(caught.value), caught.value.errno)


@needs_root
def test_somebody_elses_directory_is_refused_by_agents(tmp_path: Path) -> None:
    """Whoever owns it could do anything with the run."""
    os.chown(tmp_path, NOBODY, NOBODY)
    assert f"it belongs to user {NOBODY}, not to you" == _refusal(tmp_path).message


@needs_root
def test_somebody_elses_link_is_refused_by_agents(tmp_path: Path) -> None:
    """It may lead somewhere else tomorrow; a link of one's own is fine."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    prepare_run_dir(RunPaths(tmp_path / "link"))
    os.lchown(tmp_path / "link", NOBODY, NOBODY)
    link = tmp_path / "link"
    assert f"{link} is a symbolic link of nobody's" == _refusal(link).message


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    """With the mode, and the command that mends it."""
    os.chmod(tmp_path, mode)
    error = _refusal(tmp_path)
    assert (f"others can write to it (mode {mode:o})", f"chmod 700 {tmp_path}") == (error.message, error.fix)


@pytest.mark.parametrize("name", ["file", "file/run", "dangling"])
def test_what_is_no_directory_is_refused(tmp_path: Path, name: str) -> None:
    """A file, something below a file, a link to nothing."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    assert "it cannot be used: it is no directory" == _refusal(tmp_path / name).message


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.append("journal", 2, b"2"),
        lambda store: store.put("nodes", "a", b"1"),
        lambda store: store.create("new", "a", b"1"),
        lambda store: store.mark("members", "m"),
        lambda store: store.mark("members", "m", instead_of="l"),
    ],
    ids=["append", "put", "create", "mark", "mark instead of"],
)
def test_a_run_directory_that_vanished_is_not_made_again(
    run_paths: RunPaths, act: Callable[[SharedDirStore], object]
) -> None:
    """A writer says what is missing; what it would make would be a run without a past."""
    store = SharedDirStore(run_paths.root)
    assert store.append("journal", 1, b"1")
    shutil.rmtree(run_paths.root)
    with pytest.raises(StoreError, match=f"{run_paths.root}/.*: No such file or directory"):
        act(store)
    assert not os.path.lexists(run_paths.root)


@pytest.mark.slow
def test_an_agent_survives_the_loss_of_its_run_directory(tmp_path: Path) -> None:
    """It names what is missing, lets the workers go on, makes nothing again, and leaves when told to."""
    root, go = tmp_path / "run", tmp_path / "go"
    os.mkfifo(go)
    script = tmp_path / "worker.py"
    script.write_text(f"open({str(go)!r}).read()\nprint('worked to the end')\n")
    started = subprocess.Popen(
        agent(root, str(script)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert started.stdout is not None
    with started:
        wait_until(lambda: read_state(RunPaths(root)).running is not None, "a round", timeout_s=120)
        with go.open("w"):  # the worker reads: all that a start makes is there
            # at once, for the agent writes there
            shutil.rmtree(root.rename(tmp_path / "lost"), ignore_errors=True)
        said: list[str] = []
        while not said or "does not answer" not in said[-1]:
            said.append(started.stdout.readline())
            assert said[-1], said
        started.terminate()
        said.append(started.communicate(timeout=120)[0])
    text = "".join(said)
    assert "worked to the end" in text
    assert f"the run directory does not answer, the workers go on: {root}/" in text
    assert ": No such file or directory" in text
    assert 128 + signal.SIGTERM == started.returncode
    assert not os.path.lexists(root)


def _second_record(paths: RunPaths, data: bytes) -> str:
    open_log(paths, "n1").commit(lambda _state: EpochStarted(Epoch(0, 0, 0, 0), "", ()))
    path = os.path.join(paths.journal, "000000", "00000002")
    Path(path).write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "words", "fix"),
    [
        (b'{"format": 1', "journal record 2 is damaged", "bring the file back"),
        (b"", "journal record 2 is damaged", "bring the file back"),
        (
            b'{"format": 1, "version": "0.0.9"}',
            "journal record 2 has format 1, which an earlier hpc_elastic (0.0.9) wrote; this one, ",
            "use this run with the installation that it was started with, or submit a new run",
        ),
        (
            b'{"format": 3, "version": "9.1"}',
            "journal record 2 has format 3; hpc_elastic 9.1 wrote it",
            "install hpc_elastic 9.1 on all nodes",
        ),
        (
            b'{"format": 2, "version": "1.9", "kind": "new"}',
            "journal record 2 is of the unknown kind 'new'; hpc_elastic 1.9 wrote it",
            "install hpc_elastic 1.9 on all nodes",
        ),
    ],
    ids=["torn", "empty", "older format", "newer format", "newer kind"],
)
def test_a_record_that_cannot_be_read_is_named(
    run_paths: RunPaths, data: bytes, words: str, fix: str
) -> None:
    """To whoever reads all records and to whoever follows them: file, reason, and what to do."""
    path = _second_record(run_paths, data)
    for read in (lambda: read_records(run_paths), lambda: open_log(run_paths, "n2").refresh()):
        with pytest.raises(RendezvousStateError) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: {words}")
        assert f"\n  fix: {fix}" in str(
            caught.value
        ) or f"\n  fix: use one version for the whole run: {fix}" in (str(caught.value))


def test_status_shows_a_damaged_record_as_one_error(run_paths: RunPaths) -> None:
    """No traceback, and the agent's words."""
    Path(run_paths.identity).write_text(json.dumps({"format": 1, "run_id": "r"}))
    path = _second_record(run_paths, b"{")
    done = run(hpc_elastic("status", run_paths.root))
    assert 2 == done.returncode
    assert done.stderr.startswith(f"error: {path}: journal record 2 is damaged: ")
    assert 2 == len(done.stderr.splitlines())
    assert done.stderr in run(agent(Path(run_paths.root), "--no-python", "true")).stderr
