"""Death signals to a process that started workers: an exception, and time for the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing import SignalException, start_processes
from hpc_elastic.multiprocessing.signals import SIGNALS_ENV, SignalTrap
from tests.multiprocessing.waiting import wait_line

PARENT = """
import signal, sys
from hpc_elastic.multiprocessing import SignalException, start_processes
before = signal.getsignal(signal.SIGTERM)
context = start_processes("t", sys.executable, {{0: ("-S", "-c", {program!r})}}, log_dir={log_dir!r})
try:
    print("started", flush=True)
    context.wait()
except SignalException as error:
    print(error, error.sigval.name, flush=True)
    try:
        context.close(error.sigval, timeout=1000)
    except SignalException as again:
        print("again", again.sigval.name)
print(context.exit_codes(), signal.getsignal(signal.SIGTERM) == before)
"""


def start_parent(tmp_path: Path, program: str) -> subprocess.Popen[str]:
    """Start a process that starts one worker and waits for it."""
    code = PARENT.format(program=program, log_dir=str(tmp_path / "logs"))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    return parent


def test_signal_becomes_an_exception_and_goes_to_the_workers(tmp_path: Path, fifo: str) -> None:
    """Waiting raises, close hands the signal on, and the earlier handlers come back."""
    parent = start_parent(tmp_path, f"import signal; open({fifo!r}, 'w').write('x\\n'); signal.pause()")
    wait_line(fifo)
    parent.send_signal(signal.SIGHUP)
    output = parent.communicate(timeout=120)[0].splitlines()
    assert output == [f"Process {parent.pid} got signal: 1 SIGHUP", "{0: -1} True"]


def test_second_signal_ends_the_time_of_grace(tmp_path: Path, fifo: str) -> None:
    """A worker that does not end is killed at once by a second signal; nothing is left."""
    told = str(tmp_path / "told")
    os.mkfifo(told)
    program = f"""
import os, signal
signal.signal(signal.SIGTERM, lambda number, frame: os.write(os.open({told!r}, os.O_WRONLY), b"told\\n"))
open({fifo!r}, "w").write("ready\\n")
while True: signal.pause()
"""
    parent = start_parent(tmp_path, program)
    wait_line(fifo)
    parent.send_signal(signal.SIGTERM)
    wait_line(told)
    parent.send_signal(signal.SIGTERM)
    output = parent.communicate(timeout=120)[0].splitlines()
    assert output[1:] == ["again SIGTERM", "{0: -9} True"]


def test_signal_that_another_thread_receives_ends_the_wait(tmp_path: Path, fifo: str) -> None:
    """The kernel gives a signal to any thread; the one that waits hears of it all the same."""
    program = f"import signal; open({fifo!r}, 'w').write('x\\n'); signal.pause()"
    context = start_processes("t", sys.executable, {0: ("-S", "-c", program)}, log_dir=str(tmp_path))

    def receive() -> None:
        wait_line(fifo)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=receive)
    with pytest.raises(SignalException):  # noqa: PT012
        thread.start()
        context.wait()
    thread.join()
    context.close()


def test_signal_is_held_back_while_workers_are_started_or_stopped() -> None:
    """Within a held block nothing is raised; at its end the first signal is."""
    trap = SignalTrap()
    trap.install()
    reached = False
    try:
        with pytest.raises(SignalException) as caught, trap.held():  # noqa: PT012
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            reached = True
        assert (caught.value.sigval, reached) == (signal.SIGHUP, True)
        with pytest.raises(SignalException, match="got signal: 15"):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SignalException), trap.held():  # noqa: PT012
            signal.raise_signal(signal.SIGTERM)
            with trap.open():
                reached = False
        assert reached
    finally:
        trap.uninstall()


def test_closed_trap_hands_signals_on() -> None:
    """A handler that somebody put back after its time does what was done before it."""
    heard: list[int] = []
    usual = signal.signal(signal.SIGHUP, lambda number, _frame: heard.append(number))
    try:
        first, second = SignalTrap(), SignalTrap()
        first.install()
        second.install()
        first.uninstall()
        second.uninstall()  # puts the first one's handler back
        signal.raise_signal(signal.SIGHUP)
        assert heard == [signal.SIGHUP]
    finally:
        for sig in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(sig, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, usual)


def test_signals_can_be_chosen(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The variable names them; a name that is none is warned of."""
    monkeypatch.setenv(SIGNALS_ENV, "SIGUSR2, SIGNONE,SIGKILL")
    before = signal.getsignal(signal.SIGTERM)
    trap = SignalTrap()
    trap.install()
    try:
        assert signal.getsignal(signal.SIGTERM) == before
        with pytest.raises(SignalException):
            signal.raise_signal(signal.SIGUSR2)
    finally:
        trap.uninstall()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    assert [name in caplog.text for name in ("SIGNONE", "SIGKILL", "SIGUSR2")] == [True, True, False]


def test_other_threads_only_warn(caplog: pytest.LogCaptureFixture) -> None:
    """Signals cannot be taken over by another thread than the main one."""
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=SignalTrap().install)
    thread.start()
    thread.join()
    assert "child thread" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == before
