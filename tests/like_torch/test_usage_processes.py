"""What launchers out there do with groups of processes that they have started themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std, start_processes
from hpc_elastic.multiprocessing.api import SubprocessContext, _validate_full_rank
from hpc_elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler

SLEEP = (sys.executable, ("-c", "import signal; signal.pause()"))


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[SubprocessContext]:
    """Return two started programs that do nothing."""
    program, args = SLEEP
    group = start_processes(
        "idle", program, {0: args, 1: args}, {0: {}, 1: {}}, DefaultLogsSpecs(str(tmp_path))
    )
    assert isinstance(group, SubprocessContext)
    yield group
    group.close(timeout=0)


def test_each_program_can_be_looked_at(sleepers: SubprocessContext) -> None:
    """As a `subprocess.Popen` of its own, below its local rank."""
    handlers = sleepers.subprocess_handlers
    assert {0, 1} == set(handlers)
    assert sleepers.pids() == {rank: handler.proc.pid for rank, handler in handlers.items()}
    assert [0, 1] == [handler.local_rank_id for handler in handlers.values()]
    assert [None, None] == [handler.proc.poll() for handler in handlers.values()]
    assert [*SLEEP[1]] == handlers[0].proc.args[1:]
    with pytest.raises(subprocess.TimeoutExpired):
        handlers[0].proc.wait(0.01)


def test_one_program_can_be_ended(sleepers: SubprocessContext) -> None:
    """The group takes that for its failure, and its end stays known."""
    handler = sleepers.subprocess_handlers[1]
    handler.close(signal.SIGKILL)
    assert -signal.SIGKILL == handler.proc.wait(120)
    result = sleepers.wait()
    assert result is not None
    assert {1: -signal.SIGKILL} == {rank: failure.exitcode for rank, failure in result.failures.items()}
    ends = {rank: handler.proc.returncode for rank, handler in sleepers.subprocess_handlers.items()}
    assert {0: -signal.SIGTERM, 1: -signal.SIGKILL} == ends


class PatientContext(SubprocessContext):
    """A group that is closed by a signal of its own."""

    def close(self, death_sig: int | None = None, timeout: float | None = None) -> None:
        """End all processes by SIGINT."""
        super().close(death_sig or signal.SIGINT, timeout or 10)


def test_a_derived_group_is_closed_in_its_own_way(tmp_path: Path) -> None:
    """Its `close` is the one that is called."""
    # no Python: a signal that comes while one starts is an error of its own
    group = PatientContext("idle", "sleep", {0: ("600",)}, {0: {}}, DefaultLogsSpecs(str(tmp_path)), {0: "x"})
    group.start()
    group.close()
    assert -signal.SIGINT == group.subprocess_handlers[0].proc.poll()


def test_a_program_is_started_by_hand() -> None:
    """Without a group, next to the workers."""
    handler = SubprocessHandler(SLEEP[0], SLEEP[1], {}, "", "", 0)
    assert handler.proc.poll() is None
    handler.proc.terminate()
    assert -signal.SIGTERM == handler.proc.wait(120)
    assert -signal.SIGTERM == handler.proc.returncode


def test_the_common_files_of_a_group_are_told(tmp_path: Path) -> None:
    """Where the chosen lines of all workers go."""
    specs = DefaultLogsSpecs(str(tmp_path))
    group = start_processes("short", sys.executable, {0: ("-c", "")}, {0: {}}, specs)
    assert group.wait() is not None
    assert group.filtered_stdout.endswith("filtered_stdout.log")
    assert group.filtered_stderr.endswith("filtered_stderr.log")


class OwnSpecs(LogsSpecs):
    """Sends nothing to files, and tells the workers something."""

    def reify(self, envs: Mapping[int, dict[str, str]]) -> LogsDest:
        """Return no files but those of errors."""
        for env in envs.values():
            env["TOLD"] = f"{self._root_log_dir} {self._redirects} {self._tee} {self._local_ranks_filter}"
        nothing = dict.fromkeys(envs, "")
        errors = {rank: f"{self.root_log_dir}/{rank}.json" for rank in envs}
        return LogsDest(nothing, nothing, {}, {}, errors)

    @property
    def root_log_dir(self) -> str:
        """The directory of the error files."""
        return str(self._root_log_dir)


def test_log_specs_of_ones_own_tell_workers_something(tmp_path: Path) -> None:
    """What `reify` puts into the environments reaches the workers."""
    told = f"{tmp_path} {Std.ALL} {Std.NONE} None"
    program = f"import os; assert os.environ['TOLD'] == {told!r}"
    specs = OwnSpecs(str(tmp_path), Std.ALL, Std.NONE, None)
    group = start_processes("told", sys.executable, {0: ("-c", program)}, {0: {}}, specs)
    result = group.wait()
    assert result is not None
    assert not result.is_failed()


def test_ranks_are_checked_as_in_torch() -> None:
    """With torch's order of arguments."""
    _validate_full_rank({0: "a", 1: "b"}, 2, "args")
    with pytest.raises(RuntimeError, match="args, local rank mapping mismatch"):
        _validate_full_rank({0: "a", 2: "b"}, 2, "args")


def test_the_time_of_a_failure_can_be_corrected() -> None:
    """Who knows better when a worker failed decides which failure was the first."""
    told, caused = ProcessFailure(0, 10, -signal.SIGTERM, ""), ProcessFailure(1, 11, -signal.SIGABRT, "")
    told.timestamp, caused.timestamp = 105, 100
    assert (100, "1970-01-01") == (caused.timestamp, caused.timestamp_isoformat()[:10])
    assert (1, caused) == ChildFailedError("train.py", {0: told, 1: caused}).get_first_failure()
