"""The run directory at submission."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.request import SubmitRequest, plan, read_template
from hpc_elastic.store.check import probe
from hpc_elastic.store.check.probe import Space

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


def request_for(folder: Path) -> SubmitRequest:
    """Return a request with its run directory in a folder."""
    spec = JobSpec(command="true", name="train", run_dir=str(folder / "run"))
    return plan(spec, read_template(), now_s=0)


def refusal(path: Path, *, allow_local: bool = True) -> RunDirError:
    """Return why a run directory is refused."""
    with pytest.raises(RunDirError) as caught:
        run_dir.check(str(path), allow_local=allow_local)
    return caught.value


def test_a_new_directory_is_private_and_complete(tmp_path: Path) -> None:
    """Everything a run needs exists before the job is queued."""
    request = request_for(tmp_path)
    assert [] == run_dir.check(request.paths.root, allow_local=True)
    assert run_dir.create(request, now_s=0)
    assert 0o700 == stat.S_IMODE(os.stat(request.paths.root).st_mode)
    assert all(os.path.isdir(directory) for directory in request.paths.directories())
    identity = json.loads(Path(request.paths.identity).read_text())
    assert (1, request.run_id, "train", request.token) == tuple(
        identity[name] for name in ("format", "run_id", "name", "token")
    )
    assert request.script == Path(request.paths.script).read_text()


def test_an_own_empty_directory_is_taken_and_made_private(tmp_path: Path) -> None:
    """A user may have made it."""
    (tmp_path / "run").mkdir(mode=0o755)
    request = request_for(tmp_path)
    run_dir.check(request.paths.root, allow_local=True)
    assert not run_dir.create(request, now_s=0)
    assert 0o700 == stat.S_IMODE(os.stat(request.paths.root).st_mode)


def test_a_directory_that_holds_a_run_is_refused_with_the_way_to_resume(tmp_path: Path) -> None:
    """Also when the other submission came between check and creation."""
    request = request_for(tmp_path)
    run_dir.create(request, now_s=0)
    error = refusal(tmp_path / "run")
    assert f"already holds the run {request.run_id}" in error.message
    assert f"submit --resume {tmp_path / 'run'}" in error.fix
    with pytest.raises(RunDirError, match="already holds"):
        run_dir.create(request_for(tmp_path), now_s=0)
    assert request.token in Path(request.paths.identity).read_text()


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    """The name of one of them is shown."""
    (tmp_path / "thesis.tex").touch()
    assert "holds 'thesis.tex'" in refusal(tmp_path).message


def test_logs_of_a_refused_submission_do_not_block_the_next(tmp_path: Path) -> None:
    """What a run leaves behind is known by its name."""
    request = request_for(tmp_path)
    run_dir.create(request, now_s=0)
    log = Path(request.paths.root, "slurm-12.out")
    log.write_text("words")
    run_dir.discard(request.paths, with_root=True)
    run_dir.check(request.paths.root, allow_local=True)
    assert "words" == log.read_text()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """As the directory itself and above it."""
    (tmp_path / "file").touch()
    assert "is not a directory" in refusal(tmp_path / "file").message
    assert f"{tmp_path / 'file'} is a file" in refusal(tmp_path / "file" / "run").message


@needs_root
def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    """The owner is named."""
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    assert "belongs to nobody" in refusal(folder).message


@needs_root
def test_somebody_elses_link_is_refused(tmp_path: Path) -> None:
    """It could lead anywhere tomorrow; a link of one's own is fine."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    assert [] == run_dir.check(str(link / "run"), allow_local=True)
    os.lchown(link, NOBODY, NOBODY)
    assert "a symbolic link of nobody's" in refusal(link / "run").message


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a new directory that other users can enter; those of pytest are closed."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@needs_root
def test_a_directory_that_cannot_be_written_is_refused(open_path: Path) -> None:
    """Checked as a user without root's powers; the way to it is named, as for a job file out of sight."""
    closed, shut = open_path / "closed" / "j.toml", open_path / "shut.toml"
    closed.parent.mkdir(mode=0o700)
    for file in (closed, shut):
        file.write_text("")
    shut.chmod(0o600)
    code = (
        "import sys; from hpc_elastic.slurm.submit import run_dir\n"
        "from hpc_elastic.errors import InputError, RunDirError\n"
        "import os; os.setuid(65534)\n"
        "for path in ('/usr/run', '/usr/share/a/b'):\n"
        "    try: run_dir.check(path, allow_local=True)\n"
        "    except RunDirError as error: print(error)\n"
        "from hpc_elastic.slurm.job.job_file import read_job_file as job\n"
        "for path in sys.argv[1:]:\n"
        "    try: job(path)\n"
        "    except InputError as error: print(error)\n"
    )
    argv = [sys.executable, "-c", code, str(closed), str(shut)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "ask its owner, root, for access to /usr, or choose another --run-dir" in said
    assert f"ask its owner, root, for access to {closed.parent}\n" in said
    assert f"ask its owner, root, for access to {shut}\n" in said
    assert "the run directory /usr/run cannot be created: /usr is not writable" in said
    assert "/usr/share is not writable" in said


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory here")
def test_a_directory_in_memory_is_not_shared() -> None:
    """The file system and the way to insist are named."""
    error = refusal(Path("/dev/shm/runs/a"), allow_local=False)
    assert "only this machine sees tmpfs on /dev/shm" in error.message
    assert "--allow-local-run-dir" in error.fix


def _refused(code: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("link", errno.EOPNOTSUPP, "exclusive link: Operation not supported"),
        ("write", errno.ENOSPC, "writing: No space left on device"),
        ("mkdir", errno.EDQUOT, "writing: Disk quota exceeded"),
    ],
)
def test_a_file_system_that_cannot_hold_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, words: str
) -> None:
    """Before anything is queued, with nothing left behind."""
    monkeypatch.setattr(os, name, _refused(code))
    error = refusal(tmp_path / "new" / "run")
    assert f"the run directory {tmp_path}/new/run cannot be used: {words}" == error.message
    assert error.fix
    assert [] == list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs work there, with more lost races."""
    monkeypatch.setattr(fcntl, "flock", _refused(errno.ENOLCK))
    (warning,) = run_dir.check(str(tmp_path / "run"), allow_local=True)
    assert "lock, open files: No locks available\n  fix: runs work without locks" in warning


def test_little_room_is_a_warning_and_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that cannot write its records fails hours later; checkpoints need more."""
    monkeypatch.setattr(probe, "space_of", lambda _: Space(1 << 28, 10**6))
    (warning,) = run_dir.check(str(tmp_path / "run"), allow_local=True)
    assert "free space: 256.0 MiB\n  fix: remove files" in warning
    monkeypatch.setattr(probe, "space_of", lambda _: Space(1 << 40, 10))
    assert "free inodes: 10" in refusal(tmp_path / "run").message


def test_a_submission_that_was_killed_can_be_made_again(tmp_path: Path) -> None:
    """Every file that it had written by then is one of a run."""
    request = request_for(tmp_path)
    killed = os.fork()
    if killed == 0:
        try:  # a forked child must never return into pytest
            run_dir.create(request, now_s=0)
            Path(request.paths.start).write_bytes(b"modules")
        finally:
            os._exit(0)
    os.waitpid(killed, 0)
    assert Path(request.paths.start).exists()
    assert [] == run_dir.check(request.paths.root, allow_local=True)


def test_a_damaged_identity_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    """Missing or not what it should be."""
    paths = RunPaths(tmp_path)
    with pytest.raises(RunDirError, match="holds no run"):
        run_dir.read_identity(paths)
    for text in ("{", "[]", "{}"):
        Path(paths.identity).write_text(text)
        with pytest.raises(RunDirError, match=r"run\.json is damaged"):
            run_dir.read_identity(paths)


def test_a_run_of_another_version_is_told_with_that_version(tmp_path: Path) -> None:
    """And with what to do."""
    paths = RunPaths(tmp_path)
    Path(paths.identity).write_text('{"format": 2, "version": "9.1"}')
    with pytest.raises(
        RunDirError, match=r"run\.json has format 2 and was written by hpc_elastic 9\.1"
    ) as caught:
        run_dir.read_identity(paths)
    assert caught.value.fix.startswith("use hpc_elastic 9.1 for this run")


def test_submissions_are_numbered_records(run_paths: RunPaths) -> None:
    """The job id replaces the intent; an intent alone was interrupted."""
    submissions.announce(run_paths, 0, "t0", now_s=0)
    submissions.record(run_paths, Submission(0, "t0", "1000", "now"))
    submissions.announce(run_paths, 1, "t1", now_s=0)
    read = submissions.read_submissions(run_paths)
    assert [(0, "t0", "1000"), (1, "t1", "")] == [(each.number, each.token, each.job_id) for each in read]


def test_the_same_submission_is_announced_once(run_paths: RunPaths) -> None:
    """Two shells that resume a run at the same moment do not queue it twice."""
    submissions.announce(run_paths, 0, "t0", now_s=0)
    with pytest.raises(RunDirError, match="by another process"):
        submissions.announce(run_paths, 0, "t1", now_s=0)
    submissions.withdraw(run_paths, 0)
    submissions.announce(run_paths, 0, "t2", now_s=0)


def test_a_damaged_record_is_named(run_paths: RunPaths) -> None:
    """The file and what to do with it."""
    Path(run_paths.submissions, "000000.json").write_text("{")
    with pytest.raises(RunDirError, match=r"000000\.json is damaged"):
        submissions.read_submissions(run_paths)
