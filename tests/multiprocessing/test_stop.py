"""Stopping a group: signals, deadlines, SIGKILL, whatever escaped."""

from __future__ import annotations

import os
import signal

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.multiprocessing.context import StartSettings
from tests.multiprocessing.waiting import DEAF, ESCAPED, FOR_EVER, MakeContext, wait_line, wait_readable


def test_sigterm_ignored_ends_by_sigkill(make_context: MakeContext, fifo: str) -> None:
    """A worker that ignores SIGTERM is killed when the timeout is over."""
    context = make_context(DEAF.format(fifo=fifo))
    context.start()
    assert wait_line(fifo) == "ready"
    context.close(timeout=0.2)
    assert context.exit_codes() == {0: -signal.SIGKILL}


def test_stop_can_be_driven_without_blocking(make_context: MakeContext, fifo: str) -> None:
    """begin_stop and poll_stopped never wait, and the deadline escalates by itself."""
    context = make_context(DEAF.format(fifo=fifo))
    context.start()
    assert wait_line(fifo) == "ready"
    now = SystemClock().monotonic()
    context.begin_stop(signal.SIGTERM, kill_at=now + 100)
    assert not context.poll_stopped(now)
    assert context.next_deadline() == now + 100
    while not context.poll_stopped(now + 100):
        for fd in context.exit_fds():
            wait_readable(fd)
    assert (context.exit_codes(), context.exit_fds(), context.unkillable()) == ({0: -9}, [], [])


def test_an_exit_during_the_stop_stays_visible_until_acted_on(make_context: MakeContext) -> None:
    """Looking while a stop is on does not take the wake-up away from poll_stopped."""
    context = make_context(FOR_EVER)
    context.start()
    context.begin_stop(signal.SIGTERM)
    wait_readable(context.exit_fds()[0])
    context.look()
    assert len(context.exit_fds()) == 1
    assert context.poll_stopped(SystemClock().monotonic())


def test_kill_after_begin_stop_ends_at_once(make_context: MakeContext, fifo: str) -> None:
    """kill() does not wait for the deadline of the stop."""
    context = make_context(DEAF.format(fifo=fifo))
    context.start()
    wait_line(fifo)
    context.begin_stop()
    context.kill()
    context.close(timeout=1000)
    assert context.exit_codes() == {0: -9}


def test_a_stopped_process_is_woken_to_end(make_context: MakeContext) -> None:
    """A worker in SIGSTOP gets to act on SIGTERM."""
    context = make_context(FOR_EVER)
    context.start()
    os.kill(context.pids()[0], signal.SIGSTOP)
    context.close(timeout=1000)
    assert context.exit_codes() == {0: -signal.SIGTERM}


def test_close_is_harmless_before_start_and_twice(make_context: MakeContext) -> None:
    """close() may come at any time and again."""
    context = make_context(FOR_EVER)
    context.close()
    context.start()
    context.close()
    context.close()
    context.kill()
    assert context.poll_stopped(0.0)
    assert context.exit_codes() == {0: -15}


def test_start_twice_is_refused(make_context: MakeContext) -> None:
    """A context runs once."""
    context = make_context("pass")
    context.start()
    with pytest.raises(ValueError, match="already initialized"):
        context.start()


def test_member_that_ended_already_does_not_hinder_the_stop(make_context: MakeContext) -> None:
    """Stopping a group of which one has ended stops the others."""
    context = make_context("pass", FOR_EVER)
    context.start()
    wait_readable(context.exit_fds()[0])
    assert context.wait(0) is None
    assert len(context.exit_fds()) == 1
    context.close()
    assert context.exit_codes() == {0: 0, 1: -15}


def test_close_leaves_no_zombie(make_context: MakeContext) -> None:
    """All pids are given back by close()."""
    context = make_context("pass", FOR_EVER)
    context.start()
    pids = context.pids().values()
    context.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_group_member_gets_time_to_end_after_its_leader(make_context: MakeContext, fifo: str) -> None:
    """A wrapper that dies of SIGTERM does not take the time to save from the program inside it."""
    inner = (
        "import os, signal, sys\n"
        f"def save(*_): open({fifo!r}, 'w').write('saved\\n'); os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({fifo!r}, 'w').write('ready\\n')\n"
        "while True: signal.pause()"
    )
    wrapper = f"import os, signal\nif os.fork() == 0: exec({inner!r})\nwhile True: signal.pause()"
    context = make_context(wrapper)
    context.start()
    keep = os.open(fifo, os.O_RDWR)
    wait_readable(keep)
    assert os.read(keep, 100) == b"ready\n"
    context.close(timeout=1000)
    assert os.read(keep, 100) == b"saved\n"
    os.close(keep)


@pytest.mark.parametrize("owns_process", [False, True])
def test_escaped_grandchild_is_swept(make_context: MakeContext, fifo: str, *, owns_process: bool) -> None:
    """A grandchild in its own session, whose parent has ended, is gone after close()."""
    program = ESCAPED.format(fifo=fifo, before="pass", after="while True: signal.pause()")
    context = make_context(program, settings=StartSettings(owns_process=owns_process))
    context.start()
    pid = int(wait_line(fifo))
    context.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_escaped_grandchild_without_mark_is_swept_by_an_agent(make_context: MakeContext, fifo: str) -> None:
    """An agent that owns its process also finds who left the session and cleared the environment."""
    code = (
        "import os, signal; os.setsid()\n"
        f"open({fifo!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "while True: signal.pause()"
    )
    program = (
        "import os, signal, sys\n"
        f"if os.fork() == 0: os.execve(sys.executable, [sys.executable, '-S', '-c', {code!r}], {{}})\n"
        "while True: signal.pause()"
    )
    context = make_context(program, settings=StartSettings(owns_process=True))
    context.start()
    pid = int(wait_line(fifo))
    context.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_left_over_of_a_successful_worker_is_swept(make_context: MakeContext, fifo: str) -> None:
    """What a worker that exited 0 leaves behind does not outlive close()."""
    context = make_context(ESCAPED.format(fifo=fifo, before="pass", after=""))
    context.start()
    pid = int(wait_line(fifo))
    result = context.wait(120)
    assert result is not None
    assert not result.is_failed()
    assert not os.path.exists(f"/proc/{pid}")


def test_foreign_children_are_left_alone(make_context: MakeContext) -> None:
    """close() does not touch children that this process started elsewhere."""
    foreign = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, setsid=True)
    context = make_context(FOR_EVER)
    context.start()
    context.close()
    assert os.waitid(os.P_PID, foreign, os.WEXITED | os.WNOHANG) is None
    os.kill(foreign, signal.SIGKILL)
    os.waitpid(foreign, 0)
