"""Timers over a named pipe: real clients, a real server, real kills."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import sys
import threading
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path

import pytest

from hpc_elastic import timer
from hpc_elastic.clock import SystemClock
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.timer import ExpiredWorker, FileTimerClient, FileTimerRequest, FileTimerServer
from hpc_elastic.timer.file_based_local_timer import parse_request
from tests.timer import timed_workers
from tests.timer.conftest import Spawn, Watched

_LONG_AGO = 1.0
_NEVER = 9_999_999_999.0
NOT_REQUESTS = [
    b"",
    b"no JSON",
    b"\xff\xfe",
    b"[1]",
    b"{}",
    b'{"pid": 0, "scope_id": "a", "expiration_time": 1, "signal": 9}',
    b'{"pid": -1, "scope_id": "a", "expiration_time": 1, "signal": 9}',
    b'{"pid": true, "scope_id": "a", "expiration_time": 1, "signal": 9}',
    b'{"pid": 1, "scope_id": 5, "expiration_time": 1, "signal": 9}',
    b'{"pid": 1, "scope_id": "a", "expiration_time": "soon", "signal": 9}',
    b'{"pid": 1, "scope_id": "a", "expiration_time": NaN, "signal": 9}',
    b'{"pid": 1, "scope_id": "a", "expiration_time": 1, "signal": "KILL"}',
    b'{"pid": 1, "scope_id": "a", "expiration_time": 1}',
    b'{"version": 2, "pid": 1, "scope_id": "a", "expiration_time": 1, "signal": 9}',
    b"[" * 4000,
]


def exit_code(child: SpawnProcess) -> int | None:
    """Return a child's exit code, once it has ended."""
    child.join(120)
    return child.exitcode


def test_a_stuck_worker_is_killed_and_the_server_lives(
    watched: Watched, spawn: Spawn, tmp_path: Path
) -> None:
    """The worker prints where it is stuck and is killed; the server goes on with the next one."""
    stderr = tmp_path / "stderr"
    client = FileTimerClient(watched.path)
    for _ in range(2):
        assert -signal.SIGKILL == exit_code(spawn(timed_workers.get_stuck, client, 0.1, str(stderr)))
    wait_until(lambda: watched.names().count("kill worker process") == 2, "both kills are told")
    assert ["timer expired", "kill worker process"] * 2 == watched.names()[1:]
    assert 2 == stderr.read_text().count("in get_stuck")  # a slow machine may not be at the end of the way in
    assert {} == watched.server._timers


def test_a_worker_gets_the_signal_it_chose(watched: Watched, spawn: Spawn) -> None:
    """The client says which signal ends its process."""
    client = FileTimerClient(watched.path, signal=signal.SIGTERM)
    assert -signal.SIGTERM == exit_code(spawn(timed_workers.get_stuck, client, 0.1))


@pytest.mark.parametrize("number", [0, -1])
def test_a_worker_without_a_signal_is_only_reported(
    watched: Watched, spawn: Spawn, spawning: SpawnContext, number: int
) -> None:
    """With a signal of 0 or less the expiry is told and the worker goes on."""
    entered, leave = spawning.Event(), spawning.Event()
    child = spawn(timed_workers.hold, FileTimerClient(watched.path, signal=number), 0.05, entered, leave)
    wait_until(lambda: "timer expired" in watched.names(), "the expiry is told")
    leave.set()
    assert 0 == exit_code(child)
    assert "kill worker process" not in watched.names()


def test_many_clients_share_a_pipe(watched: Watched, spawn: Spawn) -> None:
    """No request of many processes is lost or mixed up."""
    children = [
        spawn(timed_workers.finish_in_time, FileTimerClient(watched.path), count) for count in (100, 200, 300)
    ]
    assert [0, 0, 0] == [exit_code(child) for child in children]
    watched.server.run_once()
    assert (1200, {}) == (watched.server._request_count, watched.server._timers)


def test_a_client_waits_for_a_busy_server(pipe_path: Path) -> None:
    """A pipe that is full delays a request; no request is lost, none is an error."""
    server = FileTimerServer(str(pipe_path), "run")
    holder = os.open(pipe_path, os.O_RDWR | os.O_NONBLOCK)
    written = 0
    try:
        while True:
            written += os.write(holder, FileTimerRequest(os.getpid(), "a", _NEVER).to_json().encode() + b"\n")
    except BlockingIOError:
        pass
    late = threading.Timer(0.05, server.start)
    late.start()
    FileTimerClient(str(pipe_path)).release("a")
    late.join()
    os.close(holder)
    server.run_once()
    assert {} == server._timers
    assert written > 0


def test_the_agent_ends_the_worker_if_it_wants(pipe_path: Path, spawn: Spawn, spawning: SpawnContext) -> None:
    """A callable ends the worker in place of a signal, and is asked again if it could not."""
    asked: list[ExpiredWorker] = []

    def reap(worker: ExpiredWorker) -> bool:
        asked.append(worker)
        return len(asked) > 1

    watched = Watched(pipe_path, reap=reap, max_interval=0.01)
    watched.server.start()
    try:
        entered, leave = spawning.Event(), spawning.Event()
        child = spawn(timed_workers.hold, FileTimerClient(watched.path), 0.05, entered, leave)
        wait_until(lambda: "kill worker process" in watched.names(), "the second try succeeds")
        leave.set()
        assert 0 == exit_code(child)
    finally:
        watched.server.stop()
    assert [ExpiredWorker(child.pid or 0, signal.SIGKILL, ("held",))] * 2 == asked


def test_a_callable_that_raises_spares_nobody(pipe_path: Path, spawn: Spawn) -> None:
    """The pid is signalled when the callable fails."""
    watched = Watched(pipe_path, reap=lambda _: 1 // 0 > 0)
    watched.server.start()
    try:
        assert -signal.SIGKILL == exit_code(
            spawn(timed_workers.get_stuck, FileTimerClient(watched.path), 0.1)
        )
    finally:
        watched.server.stop()


def test_timers_of_the_dead_are_dropped(watched: Watched, spawn: Spawn) -> None:
    """A worker that ends with a timer is neither killed nor told of."""
    child = spawn(timed_workers.leave_armed, FileTimerClient(watched.path), _NEVER)
    assert 0 == exit_code(child)
    wait_until(lambda: watched.server._request_count == 1, "the request has come")
    watched.server.run_once()
    assert ({}, ["watchdog started"]) == (watched.server._timers, watched.names())


def test_another_process_with_the_same_pid_is_spared(pipe_path: Path, clock: FakeClock) -> None:
    """A pid that has gone to another process since the timer was set is not signalled."""
    server = FileTimerServer(str(pipe_path), "run", clock=clock)
    server.register_timers([FileTimerRequest(os.getpid(), "a", clock.wall(), signal.SIGKILL)])
    server._workers._started[os.getpid()] = 1  # as if that process had started long before this one
    assert server._reap_worker(os.getpid(), signal.SIGKILL)


def test_a_new_process_has_none_of_the_old_timers(pipe_path: Path) -> None:
    """The timers of the dead are not those of the process that gets their pid."""
    server = FileTimerServer(str(pipe_path), "run")
    server.register_timers([FileTimerRequest(os.getpid(), "old", _NEVER)])
    server._workers._started[os.getpid()] = 1
    server.register_timers([FileTimerRequest(os.getpid(), "new", _NEVER)])
    assert [(os.getpid(), "new")] == list(server._timers)


def test_without_a_server_there_are_no_timers(pipe_path: Path) -> None:
    """A client says that nobody listens, rather than block."""
    with pytest.raises(
        BrokenPipeError, match=f"FileTimerServer is not available: no process reads from {pipe_path}"
    ):
        FileTimerClient(str(pipe_path)).acquire("a", _NEVER)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_after_its_server_a_client_fails(
    pipe_path: Path, spawn: Spawn, spawning: SpawnContext, how: str
) -> None:
    """A server that is gone, in order or not, is noticed by the next request."""
    client = FileTimerClient(str(pipe_path))
    if how == "stopped":
        server = FileTimerServer(str(pipe_path), "run")
        server.start()
        client.acquire("a", _NEVER)
        server.stop()
    else:
        ready = spawning.Event()
        child = spawn(timed_workers.serve, str(pipe_path), ready)
        assert ready.wait(120)
        client.acquire("a", _NEVER)
        child.kill()
        child.join()
    with pytest.raises(BrokenPipeError):
        client.release("a")
    assert (how == "killed") == pipe_path.exists()


def test_what_a_killed_server_left_is_replaced(pipe_path: Path) -> None:
    """An old pipe, or an empty file that holds the name, does not stop a server."""
    os.mkfifo(pipe_path)
    FileTimerServer(str(pipe_path), "run")
    pipe_path.unlink()
    pipe_path.touch()
    FileTimerServer(str(pipe_path), "run")
    assert stat.S_ISFIFO(pipe_path.stat().st_mode)


def test_a_file_of_the_user_is_kept(pipe_path: Path) -> None:
    """A path that was given by mistake loses no data."""
    pipe_path.write_text("the only copy")
    with pytest.raises(FileExistsError, match="give timers another path"):
        FileTimerServer(str(pipe_path), "run")
    assert "the only copy" == pipe_path.read_text()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the whole path of the pipe."""
    path = str(tmp_path / "absent" / "pipe")
    with pytest.raises(FileNotFoundError) as caught:
        FileTimerServer(path, "run")
    assert path == caught.value.filename
    assert path in str(caught.value)


def test_the_pipe_is_this_users_alone(watched: Watched) -> None:
    """Nobody else can send requests, which end processes."""
    assert 0o600 == stat.S_IMODE(os.stat(watched.path).st_mode)


@pytest.mark.parametrize("line", NOT_REQUESTS)
def test_no_line_but_a_request_is_one(line: bytes) -> None:
    """Whatever could harm anybody is refused."""
    with pytest.raises((ValueError, RecursionError)):
        parse_request(line)


def test_malformed_requests_are_left_out(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """What stands beside malformed lines is still heard, and each of them is logged."""
    good = FileTimerRequest(os.getpid(), "good", _NEVER, 9).to_json().encode()
    fd = os.open(watched.path, os.O_WRONLY)
    os.write(
        fd, b"\n".join([good, *[line for line in NOT_REQUESTS if line], good, b""])[: select.PIPE_BUF * 4]
    )
    os.close(fd)
    watched.server.run_once()
    assert 2 == watched.server._request_count
    assert len(NOT_REQUESTS) - 1 == caplog.text.count("Malformed request is left out")


def test_an_endless_line_is_left_out(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A line without an end does not grow in memory."""
    fd = os.open(watched.path, os.O_WRONLY)
    os.write(fd, b"x" * (select.PIPE_BUF + 1))
    os.close(fd)
    watched.server.run_once()
    assert "Unfinished request of 4097 bytes is left out" in caplog.text


def test_a_long_name_is_refused(watched: Watched) -> None:
    """A request that could not be written in one piece is not written at all."""
    with pytest.raises(RuntimeError, match=f"larger than {select.PIPE_BUF} bytes is not supported"):
        FileTimerClient(watched.path).acquire("x" * select.PIPE_BUF, _NEVER)


def test_requests_as_json() -> None:
    """The line is torch's, and is read back the same."""
    request = FileTimerRequest(3, "a b", 5.5, 9)
    expected = {"version": 1, "pid": 3, "scope_id": "a b", "expiration_time": 5.5, "signal": 9}
    assert expected == json.loads(request.to_json())
    assert request == parse_request(request.to_json().encode())
    assert (1, 3) == (request.version, request.worker_pid)


def test_a_callback_that_raises_spares_nobody(pipe_path: Path, spawn: Spawn) -> None:
    """Workers are killed even if nobody can be told."""

    def fail(name: str, request: FileTimerRequest | None) -> None:
        if request is not None:
            raise ValueError(name)

    server = FileTimerServer(str(pipe_path), "run", log_event=fail)
    server.start()
    try:
        assert -signal.SIGKILL == exit_code(
            spawn(timed_workers.get_stuck, FileTimerClient(str(pipe_path)), 0.1)
        )
    finally:
        server.stop()


def test_progress_is_now_until_a_client_comes(watched: Watched) -> None:
    """A server without clients counts as alive; then the time of its last look counts."""
    before = int(SystemClock().wall())
    assert before <= watched.server.get_last_progress_time()
    FileTimerClient(watched.path).release("a")
    wait_until(lambda: watched.server._is_client_started, "the client is noticed")
    assert watched.server._last_progress_time == watched.server.get_last_progress_time()


def test_an_idle_server_sleeps(pipe_path: Path) -> None:
    """A server looks at its timers when there is something to do, not all the time."""
    server = FileTimerServer(str(pipe_path), "run", max_interval=3600)
    server.start()
    thread = server._watchdog_thread
    assert thread is not None
    client = FileTimerClient(str(pipe_path))
    client.acquire("a", _NEVER)  # a writer has come and gone: the pipe has had its end
    wait_until(lambda: server._request_count == 1, "the request has come")
    stat_file = Path(f"/proc/self/task/{thread.native_id}/status")
    wait_until(lambda: "S (sleeping)" in stat_file.read_text(), "the thread sleeps")
    switches = _switches(stat_file)
    client.release("a")
    wait_until(lambda: server._request_count == 2, "the request has come")
    assert _switches(stat_file) - switches < 20
    server.stop()
    assert not pipe_path.exists()


def _switches(status: Path) -> int:
    words = [line.split() for line in status.read_text().splitlines()]
    return next(int(line[1]) for line in words if line[0] == "voluntary_ctxt_switches:")


def test_is_process_running() -> None:
    """A pid is known as running or not."""
    assert FileTimerServer.is_process_running(os.getpid())
    assert not FileTimerServer.is_process_running(2**22 + 1)


def test_the_modules_of_torch_are_there() -> None:
    """Every module that torch users import exists under the same name."""
    names = ["api", "local_timer", "file_based_local_timer", "debug_info_logging"]
    assert [] == [name for name in names if f"hpc_elastic.timer.{name}" not in sys.modules]
    assert timer.FileTimerServer is FileTimerServer
