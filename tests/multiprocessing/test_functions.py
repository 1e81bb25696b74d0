"""Workers that run functions: values, failures, ends, in each of the three ways to start them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from pickle import PicklingError
from typing import Any

import pytest

from hpc_elastic.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    RunProcsResult,
    Std,
    start_processes,
)
from tests.multiprocessing import workers
from tests.multiprocessing.waiting import wait_gone, wait_line

METHODS = ("spawn", "fork", "forkserver")
every_method = pytest.mark.parametrize("method", METHODS)


def run(function: Any, *args: tuple[Any, ...], method: str = "fork", **more: Any) -> RunProcsResult:
    """Run a function in one worker per tuple of arguments and return how it ended."""
    envs: dict[int, dict[str, str]] = {rank: {} for rank in range(len(args))}
    context = start_processes("test", function, dict(enumerate(args)), envs, start_method=method, **more)
    try:
        result = context.wait(50)
    finally:
        context.close(timeout=0)
    assert result is not None
    return result


@every_method
def test_values_come_back_by_local_rank(method: str, tmp_path: Path) -> None:
    """Each rank has its own arguments, and its return value is in the result."""
    result = run(workers.add, (1, 2), (3, 4), method=method, log_dir=str(tmp_path))
    assert (result.return_values, result.failures) == ({0: 3, 1: 7}, {})


@every_method
def test_environment_is_added(method: str, tmp_path: Path) -> None:
    """Variables of the parent are there, and each rank's own, whatever their type."""
    args = {0: ("A",), 1: ("A",), 2: ("HOME",)}
    envs: dict[int, dict[str, object]] = {0: {"A": 1}, 1: {"A": "x=y\n"}, 2: {}}
    context = start_processes("t", workers.variable, args, envs, start_method=method, log_dir=tmp_path)
    result = context.wait(50)
    assert result is not None
    assert result.return_values == {0: "1", 1: "x=y\n", 2: os.environ.get("HOME")}


@every_method
def test_failures_say_why(method: str, tmp_path: Path) -> None:
    """The exception with its traceback is in the error file, and in the failure."""
    result = run(workers.fail, ("bad",), method=method, log_dir=str(tmp_path))
    failure = result.failures[0]
    assert (failure.exitcode, failure.text, result.return_values) == (1, "ValueError: bad", {})
    assert "workers.py" in failure.message["extraInfo"]["py_callstack"]
    assert failure.error_file == str(tmp_path / "attempt_0" / "0" / "error.json")


@every_method
def test_signal_is_told(method: str, tmp_path: Path) -> None:
    """A worker ended by a signal has its number as a negative exit code."""
    failure = run(workers.kill_me, (signal.SIGSEGV,), method=method, log_dir=str(tmp_path)).failures[0]
    assert (failure.exitcode, failure.signal_name()) == (-11, "SIGSEGV")


@pytest.mark.parametrize("method", ["spawn", "fork"])  # a fork server does so since Python 3.13
def test_what_a_worker_leaves_for_its_exit_is_done(method: str, tmp_path: Path) -> None:
    """Functions given to atexit are called, those of the worker only."""
    mine = Path(tmp_path / "parent").touch
    atexit.register(mine)
    done = run(workers.touch_at_exit, (str(tmp_path / "worker"),), method=method, log_dir=str(tmp_path))
    atexit.unregister(mine)
    assert not done.is_failed()
    assert [True, False] == [(tmp_path / name).exists() for name in ("worker", "parent")]


@every_method
def test_workers_share_the_resource_tracker(method: str, tmp_path: Path) -> None:
    """It is that of their parent, so that what one of them shares outlives it, as with multiprocessing."""
    mine = workers.resource_tracker_pipe()
    assert {0: mine} == run(workers.resource_tracker_pipe, (), method=method, log_dir=tmp_path).return_values


@pytest.mark.parametrize(("code", "exitcode"), [(3, 3), ("text", 1), (255, 255)])
def test_exit_code_of_a_function_that_leaves(code: object, exitcode: int, tmp_path: Path) -> None:
    """sys.exit with a code or a text is a failure like that of a script."""
    assert run(workers.leave, (code,), log_dir=str(tmp_path)).failures[0].exitcode == exitcode


@pytest.mark.parametrize("code", [0, None])
def test_clean_exit_is_success(code: int | None, tmp_path: Path) -> None:
    """sys.exit(0) and sys.exit() end the worker well, without a value."""
    assert run(workers.leave, (code,), log_dir=str(tmp_path)).return_values == {0: None}


def test_leaving_without_clean_up_is_no_hang(tmp_path: Path) -> None:
    """os._exit(0) ends the worker well: nobody waits for a value that never comes."""
    assert run(workers.leave_at_once, (0,), log_dir=str(tmp_path)).return_values == {0: None}


@every_method
def test_large_values_do_not_block(method: str, tmp_path: Path) -> None:
    """Values that fit in no pipe come back from all ranks."""
    size = 40_000_000
    values = run(workers.zeros, (size,), (size + 1,), method=method, log_dir=str(tmp_path)).return_values
    assert [len(values[rank]) for rank in (0, 1)] == [size, size + 1]


def test_large_arguments_do_not_block(tmp_path: Path) -> None:
    """Arguments that fit in no pipe reach a fresh interpreter."""
    values = run(len, (bytes(20_000_000),), (b"",), method="spawn", log_dir=str(tmp_path)).return_values
    assert values == {0: 20_000_000, 1: 0}


@every_method
def test_unpicklable_value_is_a_failure(method: str, tmp_path: Path) -> None:
    """What cannot be handed over is named, with the function and what to return instead."""
    failure = run(workers.unpicklable, (), method=method, log_dir=str(tmp_path)).failures[0]
    assert "the return value of unpicklable (a function) cannot be handed" in failure.text
    assert "return a value that pickle can store" in failure.text


def test_value_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    """A value that breaks in the parent fails its rank; the parent goes on."""
    result = run(workers.odd, (), log_dir=str(tmp_path))
    assert (result.failures[0].exitcode, result.return_values) == (1, {})
    assert "cannot be read in the parent process: ValueError" in result.failures[0].text


def test_function_that_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    """A function that only the parent has is refused at once; nothing is left running."""
    with pytest.raises((AttributeError, TypeError, PicklingError), match="pickle"):
        start_processes("t", lambda: 1, {0: ()}, {0: {}}, start_method="spawn", log_dir=str(tmp_path))


def test_lambda_can_be_forked(tmp_path: Path) -> None:
    """A forked worker needs no pickle for the function."""
    captured = 5
    assert run(lambda number: captured + number, (1,), log_dir=str(tmp_path)).return_values == {0: 6}


@every_method
def test_queues_can_be_arguments(method: str, tmp_path: Path) -> None:
    """What the standard library shares between processes can be handed over."""
    queue = multiprocessing.get_context(method).Queue()
    assert not run(workers.put, (queue, 7), method=method, log_dir=str(tmp_path)).is_failed()
    assert queue.get(timeout=120) == 7
    queue.close()
    queue.join_thread()


@every_method
def test_streams_go_to_files(method: str, tmp_path: Path) -> None:
    """What Python, a child process and the descriptor write is in the file, any bytes unchanged."""
    more: dict[str, Any] = {"method": method, "log_dir": str(tmp_path), "redirects": Std.ALL}
    data = bytes(range(256))
    result = run(workers.write, (data, b"e"), (b"", b"\xff\n"), **more)
    assert [Path(result.stdouts[rank]).read_bytes() for rank in (0, 1)] == [data, b""]
    assert [Path(result.stderrs[rank]).read_bytes() for rank in (0, 1)] == [b"e", b"\xff\n"]
    result = run(workers.write_all_ways, (), **more)
    assert Path(result.stdouts[0]).read_text() == "python\nchild\ndescriptor\n"


@every_method
def test_worker_leads_its_session_with_usual_handlers(method: str, tmp_path: Path) -> None:
    """A function worker is its session's leader, and what we made of signals is not in it."""
    usual = workers.handlers() if method == "fork" else [True] * 3
    assert run(workers.is_session_leader, (), method=method, log_dir=str(tmp_path)).return_values == {0: True}
    assert run(workers.handlers, (), method=method, log_dir=str(tmp_path)).return_values == {0: usual}


@every_method
def test_deaf_worker_is_killed_after_the_grace(method: str, tmp_path: Path, fifo: str) -> None:
    """A worker that ignores the signal is killed when its time is over."""
    context = start_processes("t", workers.deaf, {0: (fifo,)}, start_method=method, log_dir=str(tmp_path))
    pid = int(wait_line(fifo))
    assert context.pids() == {0: pid}
    context.close(timeout=0.1)
    wait_gone(pid)
    assert context.exit_codes() == {0: -signal.SIGKILL}


@every_method
def test_escaped_grandchild_is_killed(method: str, tmp_path: Path, fifo: str) -> None:
    """A deaf grandchild in its own session, forked without a new program, does not stay."""
    context = start_processes("t", workers.escaped, {0: (fifo,)}, start_method=method, log_dir=str(tmp_path))
    grandchild = int(wait_line(fifo))
    context.close(timeout=10)
    wait_gone(grandchild)


@every_method
def test_worker_dies_with_its_parent(method: str, tmp_path: Path, fifo: str) -> None:
    """SIGKILL of the parent ends function workers of any kind."""
    code = f"""
import signal
from hpc_elastic.multiprocessing import start_processes
from tests.multiprocessing.workers import ready_then_wait
start_processes("t", ready_then_wait, {{0: ({fifo!r},)}}, start_method={method!r}, log_dir={str(tmp_path)!r})
while True: signal.pause()
"""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    parent = os.posix_spawn(sys.executable, [sys.executable, "-c", code], env)
    worker = int(wait_line(fifo))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_gone(worker)


def test_worker_outlives_the_thread_that_started_it(tmp_path: Path, fifo: str) -> None:
    """A thread that starts workers may end; they go on."""
    contexts = []

    def start() -> None:
        contexts.append(start_processes("t", workers.ready_then_wait, {0: (fifo,)}, log_dir=str(tmp_path)))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    pid = int(wait_line(fifo))
    assert contexts[0].wait(0.2) is None
    contexts[0].close()
    wait_gone(pid)


def test_all_that_failed_by_themselves_are_told_the_earliest_first(tmp_path: Path) -> None:
    """Who had recorded its error before it was told to end has failed too, and comes first."""
    first, go = str(tmp_path / "first"), str(tmp_path / "go")
    os.mkfifo(first)
    os.mkfifo(go)
    context = MultiprocessContext(
        "t",
        _by_rank,
        {
            0: (workers.fail_after, go),
            1: (workers.record_then_stay, first),
            2: (workers.deaf_to_nothing, None),
        },
        {rank: {} for rank in range(3)},
        "fork",
        _logs(tmp_path),
    )
    context.start()
    wait_line(first)
    Path(go).write_text("go")
    result = context.wait(50)
    context.close()
    assert result is not None
    assert [(rank, failure.text) for rank, failure in result.failures.items()] == [
        (1, "KeyError: 'first'"),
        (0, "ValueError: second"),
    ]


def _by_rank(function: Any, argument: Any) -> None:
    function(argument)


def _logs(tmp_path: Path) -> Any:
    return DefaultLogsSpecs(str(tmp_path), Std.ALL)


@every_method
def test_workers_can_start_workers(method: str, tmp_path: Path) -> None:
    """A function worker starts others in the same way."""
    result = run(workers.start_more, (method, str(tmp_path / "in")), method=method, log_dir=str(tmp_path))
    assert result.return_values == {0: {0: 3, 1: 7}}


def test_second_start_is_refused(tmp_path: Path) -> None:
    """A context starts once."""
    context = MultiprocessContext("t", workers.add, {0: ()}, {0: {}}, "fork", _logs(tmp_path))
    context.start()
    with pytest.raises(ValueError, match="start method got called twice"):
        context.start()
    assert context.wait(120) == context.wait(0)


def test_unknown_start_method_is_refused(tmp_path: Path) -> None:
    """The error names the choices."""
    with pytest.raises(ValueError, match="spawn, fork, forkserver"):
        run(workers.add, (), method="thread", log_dir=str(tmp_path))
