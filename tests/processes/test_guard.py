"""The guard: what it is told, when it fires, and when it must not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hpc_elastic.clock import SystemClock
from hpc_elastic.processes.guard import Book, Guard, find_left, sweep
from hpc_elastic.processes.linux import MARKER_ENV, is_marked, mark_number, parse_stat
from hpc_elastic.processes.process import ProcessSpec, spawn
from tests.multiprocessing.waiting import wait_gone, wait_line, wait_readable

MARK = f"mark-{os.getpid()}"  # test runs beside this one have other marks


def start_marked(env: dict[str, str]) -> int:
    """Start a process in its own session, stopped, and return its pid once its environment can be read."""
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    argv = ["sh", "-c", "echo; kill -STOP $$"]
    pid = os.posix_spawn("/bin/sh", argv, env, setsid=True, file_actions=actions)
    wait_readable(reading)
    os.close(reading)
    os.close(writing)
    return pid


def test_book_reads_lines_that_come_in_pieces() -> None:
    """Names are added and taken back, however the pipe cuts the lines."""
    book = Book()
    for chunk in (b"+m ab", b"c\n+s 1", b"2\n+s 7\n", b"-s 12\n+m x\n-m x\n"):
        book.read(chunk)
    assert (book.sessions, book.markers, book.is_closed) == ({7}, {"abc"}, False)
    book.read(b"quit\n")
    assert book.is_closed


def test_clean_end_kills_nobody() -> None:
    """stop() ends the guard without a sweep; a second call is harmless."""
    child = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {MARKER_ENV: MARK}, setsid=True)
    guard = Guard.start()
    guard.announce([child], MARK)
    guard.stop()
    guard.stop()
    assert not os.path.exists(f"/proc/{guard.pid}")
    assert os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG) is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_guard_survives_the_signals_of_slurm() -> None:
    """Signals that Slurm sends to everybody of a step do not end the guard."""
    guard = Guard.start()
    guard.announce([], "x")
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(guard.pid, sig)
    assert os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOHANG) is None
    guard.stop()


def test_killed_guard_is_no_error() -> None:
    """When somebody kills the guard, the agent goes on."""
    guard = Guard.start()
    os.kill(guard.pid, signal.SIGKILL)
    os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)
    guard.announce([1], "x")
    guard.stop()


def test_sudden_end_fires_even_if_a_child_holds_the_pipe(pipe: tuple[int, int]) -> None:
    """An agent that ends without stop() fires the guard, although a forked child has the pipe open."""
    reading, writing = pipe
    agent = os.fork()
    if agent == 0:
        try:  # a forked child must never return into pytest
            guard = Guard.start()
            victim = os.posix_spawn(
                "/bin/sleep", ["sleep", "1000"], {MARKER_ENV: f"outer,{MARK}"}, setsid=True
            )
            guard.announce([], MARK)
            holder = os.fork()
            if holder == 0:
                signal.pause()
            os.write(writing, f"{victim} {holder} {guard.pid}".encode())
        finally:
            os._exit(0)
    os.waitpid(agent, 0)
    wait_readable(reading)
    victim, holder, guard_pid = (int(word) for word in os.read(reading, 100).split())
    wait_gone(victim)
    wait_gone(guard_pid)
    os.kill(holder, signal.SIGKILL)


def test_a_directory_is_left_behind_by_nobody(pipe: tuple[int, int], tmp_path: Path) -> None:
    """What a killed agent kept in memory is removed, but for copies of a state, which its successor needs.

    A clean end leaves that to the agent.
    """
    reading, writing = pipe
    killed, ended, copied = tmp_path / "killed", tmp_path / "ended", tmp_path / "copied"
    for place in (killed, ended, copied):
        place.mkdir()
        (place / "channel").touch()
    (copied / "copy-1-0-0").touch()
    agent = os.fork()
    if agent == 0:
        try:  # a forked child must never return into pytest
            clean = Guard.start()
            clean.inherit(str(ended))
            clean.stop()
            guard = Guard.start()
            for place in (killed, copied):
                guard.inherit(str(place))
            os.write(writing, str(guard.pid).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(agent, 0)
    wait_readable(reading)
    wait_gone(int(os.read(reading, 100)))
    assert {"ended", "copied"} == {place.name for place in tmp_path.iterdir()}
    assert ["copy-1-0-0"] == [file.name for file in copied.iterdir()]
    assert (ended / "channel").exists()


def test_sweep_takes_only_what_was_named() -> None:
    """A sweep ends sessions and marks that were named and nothing else."""
    by_mark = start_marked({MARKER_ENV: MARK})
    by_session = start_marked({})
    other = start_marked({MARKER_ENV: f"{MARK}b"})
    assert set(find_left({by_session}, {MARK})) == {by_mark, by_session}
    sweep({by_session}, {MARK}, SystemClock())
    assert os.waitid(os.P_PID, other, os.WEXITED | os.WNOHANG) is None
    os.kill(other, signal.SIGKILL)
    for pid in (by_mark, by_session, other):
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_stat_line_with_an_odd_name_is_read() -> None:
    """A process name with spaces and brackets does not shift the fields."""
    stat = parse_stat(b"12 (a) R (b)) S 3 4 5 0 -1 4194304")
    assert stat == (12, "a) R (b)", "S", 3, 4, 5)


def test_mark_is_compared_as_a_whole() -> None:
    """A mark that merely begins like ours is not ours."""
    child = start_marked({MARKER_ENV: "abcdef,ghi"})
    assert (is_marked(child, {"ghi"}), is_marked(child, {"abc"})) == (True, False)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_mark_stays_with_who_clears_the_environment(fifo: str) -> None:
    """A worker's descendants are known by it whatever they do to their variables."""
    mark = os.urandom(8).hex()
    inner = f"echo ready > {fifo}; exec sleep 1000"
    env = {MARKER_ENV: f"outer,{mark}", "PATH": os.defpath}
    process = spawn(ProcessSpec(("env", "-i", "sh", "-c", inner), env))
    assert "ready" == wait_line(fifo)
    assert is_marked(process.pid, {mark})
    assert not is_marked(process.pid, {mark[::-1]})
    assert not is_marked(os.getpid(), {mark})
    process.signal_group(signal.SIGKILL)
    process.reap()


def test_marks_that_are_no_numbers_are_variables_alone() -> None:
    """Nothing is made of them, and nothing taken for them."""
    assert mark_number("outer") is None
    assert not is_marked(os.getpid(), {"outer"})
