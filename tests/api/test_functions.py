"""Functions as the work of a run, on this machine without Slurm."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission

import hpc_elastic
from hpc_elastic.api import NotDoneError, Run, function
from hpc_elastic.api.run import RUNNER_LOG
from hpc_elastic.api.start import _as_fields
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, RunDirError, StoreError
from hpc_elastic.ids import LOCAL_JOB
from hpc_elastic.launcher.failures import RunFailedError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.report.run_status import RunPhase
from hpc_elastic.slurm.run_jobs.run_files import RunFiles
from hpc_elastic.slurm.run_jobs.signs_of_life import SILENT_S
from tests.slurm.test_signs_of_life import ROUND, LaterClock, tell, write

LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have run directories made below the test's own directory."""
    monkeypatch.chdir(tmp_path)


def _scaled(values: list[float], factor: float) -> dict[str, object]:
    rank = int(os.environ["RANK"])
    print("this is rank", rank)  # noqa: T201 - what `logs` shows
    return {"rank": rank, "world": int(os.environ["WORLD_SIZE"]), "value": values[rank] * factor}


def test_values_come_back_by_rank() -> None:
    """A function runs once per worker on two nodes, with its arguments; logs and status tell of it."""
    run = hpc_elastic.submit(_scaled, [1.0, 2.0, 3.0, 4.0], 0.5, local=2, workers_per_node=2)
    expected = [{"rank": rank, "world": 4, "value": (rank + 1) * 0.5} for rank in range(4)]
    assert expected == run.results(LIMIT_S)
    assert expected[0] == run.result()
    assert "[1:rank 3] this is rank 3\n" == run.logs(3)
    assert RunPhase.DONE is run.status().phase
    assert "_scaled" == run.name
    again = Run(run.directory)
    assert expected == again.results()


def test_what_a_worker_raises_is_told() -> None:
    """The error of the run's first failure has its rank, text and traceback."""

    def broken() -> None:
        raise LookupError("no such shard")

    run = hpc_elastic.submit(broken, local=1, max_restarts=0)
    with pytest.raises(RunFailedError, match="no such shard") as caught:
        run.result(LIMIT_S)
    assert 0 == caught.value.root.rank


def test_a_run_that_is_stopped_has_no_values() -> None:
    """Whoever waits is told that it was stopped, and how to go on."""

    def patient() -> None:
        from hpc_elastic import worker  # noqa: PLC0415 - runs in the worker

        step = 0
        while not worker.should_stop():
            worker.tick(step := step + 1)

    run = hpc_elastic.submit(patient, local=1)
    with pytest.raises(TimeoutError, match="has not ended in 0 s"):
        run.wait(0)
    while not run.logs() and run.status().phase is not RunPhase.RUNNING:
        threading.Event().wait(0.05)
    run.stop()
    with pytest.raises(NotDoneError, match="submit --resume"):
        run.result(LIMIT_S)


def test_what_cannot_be_sent_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """The message names the function and the fix."""
    lock = threading.Lock()
    with pytest.raises(InputError, match="_scaled or its arguments cannot be sent") as caught:
        hpc_elastic.submit(_scaled, [lock], 1.0, local=1)
    assert "inside of the function" in str(caught.value)
    assert [] == list(tmp_path.iterdir())


def test_arguments_are_for_functions() -> None:
    """A command takes its arguments itself."""
    with pytest.raises(InputError, match="are for functions"):
        hpc_elastic.submit(["train.py"], 1, local=1)


def test_a_wrong_field_is_named() -> None:
    """As on the command line, with what is near."""
    with pytest.raises(InputError, match="gpu_per_node"):
        hpc_elastic.submit(["train.py"], local=1, gpu_per_node=2)


def test_what_others_could_have_written_is_not_unpickled(tmp_path: Path) -> None:
    """Neither a file nor a directory that others may write to, nor a link, is read."""
    paths = RunPaths(tmp_path / "run")
    os.mkdir(paths.root, 0o700)
    Path(paths.function).write_bytes(function.pickled(_scaled, ([1.0], 1.0)))
    os.chmod(paths.function, 0o622)
    with pytest.raises(RunDirError, match="can be written by others"):
        function.load(paths)
    os.chmod(paths.function, 0o600)
    os.chmod(paths.root, 0o777)
    with pytest.raises(RunDirError, match="chmod go-w"):
        function.load(paths)
    os.chmod(paths.root, 0o700)
    os.rename(paths.function, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", paths.function)
    with pytest.raises(RunDirError, match="cannot be read"):
        function.load(paths)


def test_a_directory_that_is_exchanged_while_a_function_is_loaded_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can rename a directory above the run's may move another one of the user's there."""
    paths, other = RunPaths(tmp_path / "run"), RunPaths(tmp_path / "other")
    for place, factor in ((paths, 1.0), (other, 666.0)):
        os.mkdir(place.root, 0o700)
        Path(place.function).write_bytes(function.pickled(_scaled, ([1.0], factor)))
        os.chmod(place.function, 0o600)
    os.chmod(other.root, 0o777)  # all can have put the file there
    opened = os.open

    def exchange_after(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = opened(path, flags, mode, dir_fd=dir_fd)
        if path == paths.root:
            monkeypatch.undo()
            os.rename(paths.root, tmp_path / "moved")
            os.rename(other.root, paths.root)
        return found

    monkeypatch.setattr(os, "open", exchange_after)
    assert ([1.0], 1.0) == function.load(paths).args
    assert (tmp_path / "moved").is_dir()
    with pytest.raises(RunDirError, match="can be written by others"):
        function.load(paths)


def test_nothing_is_written_through_a_link_in_the_place_of_a_log(tmp_path: Path) -> None:
    """The output of a run on this machine goes into a file of the run, or the run is not started."""
    (tmp_path / "other").write_text("precious")
    os.mkdir(tmp_path / "run", 0o700)
    os.symlink(tmp_path / "other", tmp_path / "run" / RUNNER_LOG)
    with pytest.raises(OSError, match="it is a link, not a plain file"):
        hpc_elastic.submit(_nothing, local=1, run_dir=str(tmp_path / "run"))
    assert "precious" == (tmp_path / "other").read_text()


def test_a_value_that_cannot_be_pickled_is_named(run_paths: RunPaths) -> None:
    """It is the function's to return something else."""
    with pytest.raises(InputError, match="rank 3 returned a lock that cannot be pickled"):
        function.save(run_paths, 3, threading.Lock())


def test_a_run_that_cannot_start_is_told() -> None:
    """Nobody waits for ever for a run whose agents cannot be started."""
    run = hpc_elastic.submit(_nothing, local=1, setup=["false"])
    with pytest.raises(NotDoneError, match="submit --resume"):
        run.result(LIMIT_S)


def test_a_call_that_cannot_work_is_refused_before_anything_is_queued() -> None:
    """As Python would say it, but on the login node."""
    with pytest.raises(
        InputError, match="cannot be called with the given arguments: missing a required argument"
    ):
        hpc_elastic.submit(_scaled, [1.0], local=1)
    assert not os.path.exists("hpc_elastic_runs")


def test_what_is_no_function_is_refused_for_one() -> None:
    """An executor of submitit may be given a program."""
    program: Any = "train.py"
    with pytest.raises(InputError, match=r"'train\.py' cannot be called\n  fix: give a function"):
        function.check_arguments(DelayedSubmission(program), "")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    """At once, and not when somebody waits for it for ever."""
    with pytest.raises(RunDirError, match=r"Run: the directory .*/nix does not exist\n  fix: give"):
        Run("nix")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirError, match=r"empty is not a run directory: it has no run\.json"):
        Run("empty")
    (tmp_path / "runs" / "one" / "journal").mkdir(parents=True)
    assert str(tmp_path / "runs" / "one") == Run("runs/one").directory
    with pytest.raises(RunDirError, match=r"it holds runs; name one of them, such as .*/runs/one"):
        Run("runs")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "choose a directory; --allow-local-run-dir if they see this one",
            "choose a directory; allow_local_run_dir=True if they see this one",
        ),
        ("choose another --run-dir", "choose another run_dir"),
        ("hpc-elastic submit --resume /a--run-dir", "hpc-elastic submit --resume /a--run-dir"),
        ("write it after --: -- train.py", "write it after --: -- train.py"),
    ],
)
def test_options_are_named_as_fields(given: str, told: str) -> None:
    """Who submits from Python has no command line; what is no field stays as it is."""
    assert told == _as_fields(given)


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory here")
def test_the_way_to_insist_is_named_as_python_writes_it() -> None:
    """A node-local directory is refused, as on the command line."""
    with pytest.raises(RunDirError, match=r"fix: .*allow_local_run_dir=True if they do"):
        hpc_elastic.submit(["true"], run_dir="/dev/shm/hpc-elastic-run", cpus_per_node=1, time=5)


def test_a_run_whose_agents_are_silent_is_told(run_paths: RunPaths) -> None:
    """Records and Slurm say that it runs, but nobody gives a sign of life."""
    write(run_paths, EpochStarted(Epoch(0, 0, 0, 0), f"{LOCAL_JOB}{os.getpid()}", ("n1",)), ROUND)
    tell(run_paths, 5)
    run = Run(run_paths.root)
    assert RunPhase.RUNNING is run.status().phase
    run._clock = LaterClock(SILENT_S + 60)
    assert RunPhase.SILENT is run.status().phase
    assert "no agent has given a sign of life for" in run.status().text


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> int:
    return 1


@pytest.mark.parametrize("work", [_generator, _coroutine])
def test_what_runs_nothing_when_it_is_called_is_refused(work: Callable[[], object], tmp_path: Path) -> None:
    """The workers would end at once, with a value that cannot be pickled."""
    with pytest.raises(InputError, match=f"{work.__name__} is asynchronous or a generator"):
        hpc_elastic.submit(work, local=1)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["command", "module"])
def test_a_function_is_no_program(field: str) -> None:
    """Nobody's command is left out in silence."""
    with pytest.raises(InputError, match=f"{field} = 'train.py' is for programs"):
        hpc_elastic.submit(_nothing, local=1, **{field: "train.py"})


def _nothing() -> None:
    """Do nothing."""


def test_the_nodes_that_are_played_have_to_fit(tmp_path: Path) -> None:
    """As on the command line, and before anything is made."""
    with pytest.raises(
        InputError, match=r"^local: --local 1 is outside nodes = 4\n  fix: change one of them"
    ):
        hpc_elastic.submit(_nothing, local=1, nodes=4)
    assert [] == list(tmp_path.iterdir())


def test_a_path_is_a_script_or_a_job_file(tmp_path: Path) -> None:
    """Blanks in it are part of the name; a program has no values, which is told before anybody waits."""
    script = tmp_path / "my train.py"
    script.write_text("print('trained')\n")
    run = hpc_elastic.submit(script, local=1)
    with pytest.raises(InputError, match="is no function, so it returns no values"):
        run.results()
    assert RunPhase.DONE is run.wait(LIMIT_S).phase
    assert "trained" in run.logs()
    (tmp_path / "job.toml").write_text('command = "my_train.py"\nnodes = 3\n')
    with pytest.raises(InputError, match="--local 1 is outside nodes = 3"):
        hpc_elastic.submit(tmp_path / "job.toml", local=1)


def test_modules_beside_the_caller_are_found(tmp_path: Path) -> None:
    """A notebook's own directories need not be on PYTHONPATH; packages are those of the worker's Python."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "of_my_own.py").write_text("def answer():\n    return 42\n")
    load = "import pickle, sys; print(pickle.load(sys.stdin.buffer).result())"
    send = (
        "import sys; sys.path.append('lib'); import of_my_own; from hpc_elastic.api import function; "
        "sys.stdout.buffer.write(function.pickled(of_my_own.answer, ()))"
    )
    sent = subprocess.run(
        [sys.executable, "-c", send], cwd=tmp_path, stdout=subprocess.PIPE, check=True
    ).stdout
    done = subprocess.run([sys.executable, "-c", load], input=sent, cwd="/", capture_output=True, check=True)
    assert b"42\n" == done.stdout
    (tmp_path / "lib" / "of_my_own.py").unlink()
    done = subprocess.run([sys.executable, "-c", load], input=sent, cwd="/", capture_output=True, check=False)
    missing, fix = done.stderr.decode().splitlines()[-2:]
    assert missing.endswith("the function cannot be called here: No module named 'of_my_own'")
    assert sys.executable in fix


def test_directories_of_python_itself_stay_here(tmp_path: Path) -> None:
    """Those of another Python would bring packages that were made for it."""
    there = [str(tmp_path), *sys.path, str(tmp_path), str(tmp_path / "none")]
    found = function.own_directories(there)
    assert str(tmp_path) == found[0]
    assert 1 == found.count(str(tmp_path))
    assert not [
        place for place in found if place.endswith("-packages") or place == os.path.dirname(os.__file__)
    ]


class _OnlyThere:
    """A value that only its maker can read, as a tensor of a GPU."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no GPU here",)


def test_a_value_that_cannot_be_read_here_is_named(run_paths: RunPaths) -> None:
    """With its rank, the reason and what to do."""
    function.save(run_paths, 0, _OnlyThere())
    with pytest.raises(
        InputError, match=r"the value that rank 0 has returned cannot be unpickled here: ValueError: .*no GPU"
    ):
        function.results(run_paths, 1)


def test_what_a_command_line_would_warn_of_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """It points to the line that submits."""
    monkeypatch.setattr(
        "hpc_elastic.slurm.submit.validate.check", lambda *_, **__: ["odd\n  fix: give --run-dir"]
    )
    with pytest.warns(UserWarning, match="odd\n  fix: give run_dir") as caught:
        run = hpc_elastic.submit(_nothing, local=1)
    assert __file__ == caught[0].filename
    assert RunPhase.DONE is run.wait(LIMIT_S).phase


def test_a_file_server_may_be_away(run_paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for days goes on waiting; not for ever, and not for a directory that is gone."""
    write(run_paths, EpochStarted(Epoch(0, 0, 0, 0), f"{LOCAL_JOB}{os.getpid()}", ("n1",)), ROUND)
    run = Run(run_paths.root)
    clock = run._clock = _Leaping()
    troubles = iter([StoreError("away", errno=errno.EIO)] * 3)

    def read() -> RunFiles:
        clock.now += 60.0
        raise next(troubles, StoreError("gone", errno=errno.ENOENT))

    monkeypatch.setattr(run, "_read", read)
    with pytest.raises(StoreError, match="gone"):
        run.wait()
    troubles = iter([StoreError("away", errno=errno.EIO)] * 9)
    with pytest.raises(StoreError, match="away"):
        run.wait()
    assert 1 < len(list(troubles)) < 9


class _Leaping(SystemClock):
    """A clock that waits for nobody."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
