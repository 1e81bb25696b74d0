"""Agents outside of the process tree that Slurm searches: signals, ends, and who dies with whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.processes.linux import descendants, read_stat
from hpc_elastic.slurm.watch.process_tree import is_searched
from hpc_elastic.testing.waiting import wait_until

STEP = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
V1 = "9:freezer:{}\n4:memory:/slurm/uid_1/job_7/step_0/task_0\n0::/\n"
V2 = "0::{}\n"

WORK = """
import os, signal, sys
from hpc_elastic.slurm.watch.process_tree import run_apart

def work(held):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    print("pid", os.getpid(), flush=True)
    {body}

sys.exit(run_apart(work))
"""
HEARS = "print(signal.Signals(signal.sigwait([signal.SIGTERM, signal.SIGUSR1])).name, flush=True); return 7"

FORKS = """child = os.fork()
    if child == 0:
        signal.sigwait([signal.SIGUSR1])
        os._exit(0)
    print(child, flush=True)
    """


@pytest.mark.parametrize(
    ("environ", "cgroups", "searched"),
    [
        (STEP, "", True),
        (STEP, V1.format("/"), True),  # task/cgroup alone does not track
        (STEP, V1.format("/slurm_n1/uid_1/job_7/step_0"), False),
        (STEP, V2.format("/user.slice/session-3.scope"), True),
        (STEP, V2.format("/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0"), False),
        ({**STEP, "HPC_ELASTIC_LOCAL": "1"}, "", False),
        ({"SLURM_JOB_ID": "7"}, "", False),  # in a shell of salloc
        ({}, "", False),
    ],
)
def test_who_is_searched_by_parents(environ: dict[str, str], cgroups: str, searched: bool) -> None:
    """Processes of a job that no cgroup of its step holds; under v1 the freezer's tells."""
    assert searched == is_searched(environ, cgroups)


@contextmanager
def started(body: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run some work apart; yield the process that stays, and the pid of the one that works."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK.format(body=body)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
        assert word == "pid"
        yield process, int(pid)
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that the work prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    stat = read_stat(pid)
    return stat is None or stat.is_dead


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    """The work hears what the process hears that Slurm knows, and its exit code is that process's."""
    with started(HEARS) as (process, _):
        process.send_signal(number)
        assert number.name == line(process)
        assert 7 == process.wait(timeout=120)


def test_it_is_nobodys_descendant() -> None:
    """Whoever follows parents from the process that stays does not find the work."""
    with started(HEARS) as (process, pid):
        root, work = read_stat(process.pid), read_stat(pid)
        assert root is not None
        assert work is not None
        assert work.session != root.session

        def name(pid: int) -> str:
            return Path(f"/proc/{pid}/comm").read_text().strip()

        wait_until(lambda: name(process.pid) == "hpc-front", "its name", timeout_s=120)
        assert "hpc-front" != name(pid)

        def found() -> list[int]:
            return [stat.pid for stat in descendants([root])]

        # The process between the two may still be ending while the work already prints.
        wait_until(lambda: found() == [process.pid], "the process that stays to be alone", timeout_s=120)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return 0", 0),
        ("sys.exit(83)", 83),
        ("sys.exit()", 0),
        ("sys.exit('no')", 1),
        ("sys.exit('')", 0),
        ("raise OSError", 1),
    ],
)
def test_it_ends_as_the_work_ends(body: str, code: int) -> None:
    """However the work ends by itself."""
    with started(body) as (process, _):
        assert code == process.wait(timeout=120)


def test_the_work_is_killed_with_it() -> None:
    """SIGKILL by Slurm, of which nobody hears: the kernel ends the work, busy or not."""
    with started("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); signal.pause()") as (
        process,
        pid,
    ):
        process.kill()
        wait_until(lambda: gone(pid), "the work to be killed", timeout_s=120)


def test_a_work_that_is_killed_is_told() -> None:
    """It dies of SIGKILL, too, but only when those who hold the descriptor have ended."""
    with started(f"{FORKS}os.kill(os.getpid(), signal.SIGKILL)") as (process, pid):
        child = int(line(process))
        wait_until(lambda: gone(pid), "the work to be gone", timeout_s=120)
        assert process.poll() is None
        os.kill(child, signal.SIGUSR1)
        assert -signal.SIGKILL == process.wait(timeout=120)


def test_a_suspended_job_stands_still() -> None:
    """SIGTSTP stops the work and all below it, SIGCONT lets all go on."""
    with started(f"{FORKS}return signal.sigwait([signal.SIGTERM])") as (process, pid):
        pids = (process.pid, pid, int(line(process)))

        def states() -> set[str]:
            return {stat.state for one in pids if (stat := read_stat(one)) is not None}

        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: states() == {"T"}, "all to stand still", timeout_s=120)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: states() == {"S"}, "all to go on", timeout_s=120)
        process.send_signal(signal.SIGTERM)
        os.kill(pids[2], signal.SIGUSR1)
        assert signal.SIGTERM == process.wait(timeout=120)


APART = """
import os, signal, sys
from hpc_elastic.slurm.watch.process_tree import run_apart

def work(held):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    is_same = sorted(blocked) == [signal.SIGUSR2]
    print(held is not None, is_same, len(os.listdir("/proc/self/fd")) - open_before)
    return 5

signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2])
open_before = len(os.listdir("/proc/self/fd"))
{fault}
code = run_apart(work)
print("result", code, flush=True)
sys.exit(code)
"""
NO_ROOM = """
def refuse():
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refuse
"""


@pytest.mark.parametrize(("fault", "told"), [("", "True True 2"), (NO_ROOM, "False True 0")])
def test_the_work_has_the_signals_of_its_caller(fault: str, told: str) -> None:
    """Blocked are those that were, apart or, where there is no room for a process, in the same one.

    Of descriptors it has two more: one by which it hears of the end of the other process, and one to tell.
    """
    argv = [sys.executable, "-c", APART.format(fault=fault)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (5, told) == (done.returncode, done.stdout.strip()[: len(told)]), done.stderr
    assert "result 5" in done.stdout


def test_signals_are_passed_on_where_the_kernel_has_no_descriptors_of_processes() -> None:
    """Before Linux 5.3, or in a sandbox: by the number of the process."""
    refuse = "def refuse(*_): raise OSError(38, 'Function not implemented')\nos.pidfd_open = refuse\n"
    code = WORK.format(body=HEARS).replace("\nsys.exit", f"\n{refuse}sys.exit")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert line(process).startswith("pid ")
        process.send_signal(signal.SIGUSR1)
        assert "SIGUSR1" == line(process)
        assert 7 == process.wait(timeout=120)
    finally:
        process.kill()
        process.communicate()


LATE = """
import os, sys
from hpc_elastic.slurm.watch.process_tree import _leave
life, living = os.pipe()
told, telling = os.pipe()
os.close(living)
if os.fork() == 0:
    os.close(told)
    _leave(life, telling)
    os.write(telling, b"goes on")
    os._exit(0)
os.close(telling)
os.wait()
print(os.read(told, 100))
"""


def test_the_work_does_not_begin_where_the_process_that_stays_is_gone_already() -> None:
    """The kernel tells of an end alone that comes later."""
    done = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, check=True, timeout=120
    )
    assert "b''" == done.stdout.strip()
