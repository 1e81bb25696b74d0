"""Where checkpoints lie, when they count and which are removed."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import worker
from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.frameworks import ElasticLoop, saving
from hpc_elastic.frameworks.saving import Saves, complete_orders, outdated, sync, sync_file_system
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.worker.progress import WorkerProgress

COUNT = """
import os, sys
from hpc_elastic.frameworks import ElasticLoop, saving
x = []
def save(path):
    open(path, "w").write(" ".join(map(str, x)))
def load(path):
    x[:] = map(int, open(path).read().split())
loop = ElasticLoop(save, load, save_every=2)
for step in loop.steps(int(sys.argv[1])):
    x.append(step)
    if len(x) == int(sys.argv[2]):
        os._exit(7)
print(x, loop.stopped)
"""


def mark(step: int, rank: int, shards: int, round_number: int = 1) -> str:
    """Return the name of a mark."""
    return checkpoints.encode_name(checkpoints.MarkName(step, round_number, rank, shards))


def test_a_half_saved_checkpoint_neither_counts_nor_goes() -> None:
    """Of the complete ones as many as wanted are kept; what is newer than them is none of its business."""
    marks = [mark(step, rank, 2) for step in (10, 20, 30) for rank in (0, 1)] + [mark(40, 0, 2)]
    names = [f"step-{step}-1" for step in (10, 20, 30, 40)]
    complete = complete_orders(names, marks)
    assert ["step-10-1"] == outdated(names, complete, 2)
    assert ["step-10-1", "step-20-1"] == outdated(names, complete, 1)
    assert [] == outdated(names, complete, 4)


@pytest.mark.parametrize("keep", [1, checkpoints.KEPT, checkpoints.KEPT + 5])
def test_more_checkpoints_may_be_kept_than_marks(keep: int) -> None:
    """What is older than the oldest mark was complete once, and is counted by its name."""
    steps = range(1, 61)
    marks = [mark(step, 0, 1) for step in steps if step > 60 - checkpoints.KEPT]
    names = [f"step-{step}-1" for step in steps]
    old = outdated(names, complete_orders(names, marks), keep)
    assert {f"step-{step}-1" for step in range(1, 61 - keep)} == set(old)


def test_leftovers_of_an_earlier_round_go() -> None:
    """What a killed start has left half written is older than what the next one saves at that step."""
    names = ["step-20-1", "step-20-2", "mine"]
    assert ["step-20-1"] == outdated(names, complete_orders(names, [mark(20, 0, 1, 2)]), 1)


def test_what_a_run_has_gone_back_behind_stays() -> None:
    """The user may want to go there; what was half saved goes, as ever."""
    names = ["step-10-1", "step-20-1", "step-30-1", "step-15-2", "step-16-2", "step-17-2-1"]
    marks = [mark(10, 0, 1), mark(20, 0, 1), mark(15, 0, 1, 2), mark(16, 0, 1, 2)]
    left = {one.order for one in checkpoints.left_marks(marks)}
    complete = complete_orders(names, marks)
    assert [(2, 0, 16), (2, 0, 15), (1, 0, 10)] == complete
    assert ["step-10-1", "step-30-1"] == outdated(names, complete, 2, left)


def test_objects_have_folders_and_marks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None removes the checkpoints of another, nor takes them for its own."""
    environ = in_run(tmp_path / "run", monkeypatch)
    saves = [Saves(5, keep=1, name=name, environ=environ) for name in ("", "teacher")]
    for one in saves:
        for step in (5, 10):
            path = one.path(step)
            Path(path).touch()
            worker.checkpoint_saved(step, path, name=one.name)
        one.remove_old()
    places = [str(tmp_path / "run" / "saved" / name) for name in ("step-10-0", "teacher/step-10-0")]
    assert places == [path for one in saves for path in one.complete()]
    assert places == [getattr(worker.latest_checkpoint(one.name), "path", None) for one in saves]


def test_what_a_failed_save_has_left_goes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts and its mark: a disk that was full for a moment has room again."""
    environ = in_run(tmp_path / "run", monkeypatch)
    saves = Saves(5, environ=environ)
    path = Path(saves.path(5))
    path.mkdir()
    (path / "part").touch()
    worker.checkpoint_saved(5, path)
    saves.discard(5, str(path))
    assert [] == os.listdir(saves.directory)
    assert worker.latest_checkpoint() is None
    saves.discard(5, str(path))


def test_a_branch_is_part_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has gone back writes over no checkpoint of the steps that it makes once more."""
    saves = Saves(5, environ=in_run(tmp_path / "run", monkeypatch))
    worker.tick(10)
    worker.resumed(5)
    assert saves.path(10).endswith("/step-10-0-1")


def test_our_directories_are_private(tmp_path: Path) -> None:
    """Whatever the umask, and the directory above them may be a group's."""
    before = os.umask(0o002)
    try:
        tmp_path.chmod(0o2775)
        saves = Saves(5, tmp_path, name="teacher")
        saves.make()
        assert 0o700 == 0o777 & os.stat(saves.directory).st_mode
        assert 0o2775 == stat.S_IMODE(tmp_path.stat().st_mode)
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="root has no private group of a user's")
def test_an_open_directory_is_closed_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of an older version, as the umask let a group write to it; reading stays allowed."""
    place = tmp_path / "teacher"
    place.mkdir()
    os.chown(place, -1, 65534)
    place.chmod(0o775)
    Saves(5, tmp_path, name="teacher").make()
    assert 0o755 == stat.S_IMODE(place.stat().st_mode)
    assert f"To let them read: chmod -R go+rX,go-w {place}" in caplog.text
    caplog.clear()
    Saves(5, tmp_path, name="teacher").make()
    assert "" == caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_directory_that_another_user_has_made_is_refused(tmp_path: Path, is_link: bool) -> None:
    """He would read all that is saved, and have code run."""
    place, target = tmp_path / "teacher", tmp_path / "mine"
    target.mkdir()
    if is_link:
        place.symlink_to(target)
    else:
        place.mkdir()
    os.chown(place, 65534, 65534, follow_symlinks=False)
    with pytest.raises(InputError, match="it belongs to user nobody"):
        Saves(5, tmp_path, name="teacher").check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("save_every", 0),
        ("save_every", 0.5),
        ("save_every", True),
        ("keep", 0),
        ("keep", None),
        ("directory", 5),
        ("directory", ""),
    ],
)
def test_a_value_that_cannot_be_is_refused(name: str, value: object) -> None:
    """It is named, and so is its argument."""
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(InputError, match=f"{name} is {value!r}") as refused:
        ElasticLoop(print, print, **wrong)
    assert "number, None" not in str(refused.value)


def test_a_number_of_steps_that_is_none_is_refused(tmp_path: Path) -> None:
    """Before anything is loaded: as a text of a configuration file."""
    loop: Any = ElasticLoop(print, print, directory=tmp_path)
    with pytest.raises(InputError, match="the number of steps is '5'") as refused:
        next(loop.steps("5"))
    assert "give a whole number" in str(refused.value)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_directory_that_cannot_be_is_refused_before_the_first_step(tmp_path: Path, name: str) -> None:
    """One error names it: hours later the first save would fail."""
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"checkpoints cannot lie in .*/file"):
        Saves(None, tmp_path / name).check()
    with pytest.raises(InputError, match="it is no directory"):
        Saves(None, tmp_path / name).found()


def test_paths_of_two_rounds_differ(tmp_path: Path) -> None:
    """A restart at the same step writes elsewhere than the killed start."""
    first, second = (Saves(5, tmp_path, environ={Env.ROUND: number}) for number in ("1", "2"))
    assert first.path(5) != second.path(5)
    assert [True, False] == [first.is_due(step) for step in (10, 11)]


def test_steps_that_are_counted_in_leaps_do_not_miss_a_checkpoint(tmp_path: Path) -> None:
    """Two optimizers make two steps of a batch; a save every 5 steps is then one at 6, 10, 16."""
    saves = Saves(5, tmp_path)
    assert [6, 10, 16] == [step for step in range(2, 17, 2) if saves.is_due(step, step - 2)]
    loop = ElasticLoop(lambda path: Path(path).touch(), print, save_every=5, directory=tmp_path)
    for step in range(3, 13, 3):
        loop.done(step)
    assert {"step-6-0", "step-12-0"} == set(os.listdir(tmp_path))


def in_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make a run, and this process its only worker; return the environment."""
    root.mkdir(parents=True, exist_ok=True)
    environ = {Env.RUN_DIR: str(root), "RANK": "0", "WORLD_SIZE": "1"}
    monkeypatch.setattr(worker, "_attached", [WorkerProgress.from_environment(environ)])
    return environ


def test_runs_may_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a sweep save the same steps; none writes over or removes those of another of its name."""
    found = []
    for name in ("a/train", "b/train", "a/train"):
        environ = in_run(tmp_path / name, monkeypatch)
        found.append(Saves(5, tmp_path / "saved", environ=environ).path(5))
    assert found[0] == found[2] != found[1]
    for path in found:
        assert re.fullmatch(rf"{tmp_path}/saved/train-[0-9a-f]{{8}}/step-5-0", path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_marks_of_somebody_else_remove_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He may have put a directory with marks of later steps in the place of the run's."""
    paths = RunPaths(tmp_path / "run")
    environ = in_run(tmp_path / "run", monkeypatch)
    saves = Saves(5, tmp_path / "mine", keep=1, environ=environ)
    path = saves.path(5)
    Path(path).touch()
    (Path(paths.checkpoints) / mark(10**6, 0, 1)).touch()
    os.chown(paths.checkpoints, 65534, 65534)
    with pytest.raises(UnfitFileError, match="it belongs to user nobody"):
        saves.saved(5, path)
    assert Path(path).exists()


def test_everything_below_a_directory_is_synced(tmp_path: Path) -> None:
    """Whatever lies there, links to nowhere among it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("x")
    (tmp_path / "a" / "gone").symlink_to(tmp_path / "nothing")
    sync(str(tmp_path / "a"))


@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_the_disk_has_not_taken_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    """Each rank's part has to be on the disk before its mark, as its node may be lost the next moment."""
    paths = RunPaths(tmp_path)
    in_run(tmp_path, monkeypatch)
    saves = Saves(5, environ={"RANK": rank, "WORLD_SIZE": "2", Env.RUN_DIR: paths.root})
    path = saves.path(5)
    Path(path).touch()
    with monkeypatch.context() as full:
        for name in ("sync", "sync_file_system"):
            full.setattr(saving, name, _disk_is_full)
        with pytest.raises(OSError, match="No space left"):
            saves.mark(5, path)
    marked: list[str] = []
    monkeypatch.setattr("hpc_elastic.worker.checkpoint_saved", lambda _step, at, **_: marked.append(at))
    saves.mark(5, path)
    assert [path] == marked


def _disk_is_full(path: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_a_file_system_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Nothing counts as synced by mistake."""
    sync_file_system(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        sync_file_system(str(tmp_path / "none"))


def test_a_loop_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Killed after 5 steps it loads what was saved after 4, and leaves the two newest checkpoints."""
    paths = RunPaths(tmp_path)
    environ = {**os.environ, Env.RUN_DIR: paths.root, "WORLD_SIZE": "1", "RANK": "0"}

    def run(steps: int, die_at: int, round_number: int) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", COUNT, str(steps), str(die_at)]
        place = {**environ, Env.ROUND: str(round_number)}
        return subprocess.run(words, env=place, capture_output=True, text=True, check=False, timeout=150)

    assert 7 == run(8, 5, 1).returncode
    assert "[0, 1, 2, 3, 4, 5, 6, 7] False\n" == run(8, 0, 2).stdout
    assert {"step-6-2", "step-8-2"} == set(os.listdir(tmp_path / "saved"))


class Fold:
    """A training that counts its steps, and saves them."""

    def __init__(self) -> None:
        self.steps = 0

    def save(self, path: str) -> None:
        """Save."""
        Path(path).write_text(str(self.steps))

    def load(self, path: str) -> None:
        """Load."""
        self.steps = int(Path(path).read_text())

    def train(self, total: int, name: str = "") -> int:
        """Train up to a step; return the steps that were made."""
        for step in ElasticLoop(self.save, self.load, save_every=1, name=name).steps(total):
            self.steps = step + 1
        return self.steps


def test_a_loop_that_would_end_as_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold of the same name would make no step; one of another name goes on, and the same one again."""
    in_run(tmp_path, monkeypatch)
    first, second = Fold(), Fold()
    assert 2 == first.train(2)
    assert 2 == first.train(2)
    with pytest.raises(InputError, match="another loop without a name was completed in this program"):
        second.train(2)
    assert 2 == Fold().train(2, "second")
    assert 3 == second.train(3)


def test_a_loop_without_a_run_is_a_loop(tmp_path: Path) -> None:
    """It saves below the current directory and starts at the beginning."""
    words = [sys.executable, "-c", COUNT, "3", "0"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("HPC_ELASTIC")}
    done = subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=150
    )
    assert "[0, 1, 2] False\n" == done.stdout
    assert ["step-2-0"] == os.listdir(tmp_path / "saved")
