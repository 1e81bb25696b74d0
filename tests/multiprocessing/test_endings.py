"""Programs and functions are told to end in the same way: which signal, who gets it, how long they have."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.multiprocessing import start_processes
from tests.multiprocessing import workers
from tests.multiprocessing.waiting import wait_gone, wait_readable

ROOT = str(Path(__file__).parents[2])
every_kind = pytest.mark.parametrize("kind", ["program", "fork", "spawn", "forkserver"])
NUMBERS = (int(signal.SIGTERM), int(signal.SIGUSR1), int(signal.SIGINT))


def start(kind: str, folder: Path, fifo: str) -> Any:
    """Start a worker that tells of signals, and its child."""
    if kind == "program":
        args = (workers.__file__, fifo, *NUMBERS)
        return start_processes("t", sys.executable, {0: args}, {0: {"PYTHONPATH": ROOT}}, log_dir=folder)
    return start_processes("t", workers.tell_signals, {0: (fifo, NUMBERS)}, start_method=kind, log_dir=folder)


def read_lines(fd: int, count: int) -> list[str]:
    """Return so many lines of a named pipe."""
    text = b""
    while text.count(b"\n") < count:
        wait_readable(fd)
        text += os.read(fd, 4096)
    return text.decode().splitlines()


@every_kind
@pytest.mark.parametrize("number", [None, signal.SIGUSR1, signal.SIGINT], ids=["usual", "SIGUSR1", "SIGINT"])
def test_the_signal_goes_to_worker_and_child(
    kind: str, number: signal.Signals | None, tmp_path: Path, fifo: str
) -> None:
    """Both get the signal that was asked for, SIGTERM if none was, and the time to end well."""
    pipe = os.open(fifo, os.O_RDWR)
    context = start(kind, tmp_path, fifo)
    assert ["ready"] * 2 == read_lines(pipe, 2)
    context.close(number, timeout=1000)
    assert [str(int(number or signal.SIGTERM))] * 2 == read_lines(pipe, 2)
    assert {0: 0} == context.exit_codes()
    os.close(pipe)


@every_kind
def test_nothing_is_left_when_there_is_no_time(kind: str, tmp_path: Path, fifo: str) -> None:
    """Without a time of grace the worker and its child are killed at once."""
    pipe = os.open(fifo, os.O_RDWR)
    context = start(kind, tmp_path, fifo)
    read_lines(pipe, 2)
    pid = context.pids()[0]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert 1 == len(children)
    context.kill()
    context.close()
    assert {0: -signal.SIGKILL} == context.exit_codes()
    wait_gone(int(children[0]), 0)
    os.close(pipe)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1 << 20])
def test_values_of_any_size_come_back(size: int, tmp_path: Path) -> None:
    """Also those about as large as a pipe holds, from several ranks of which one returns at once."""
    args = {0: (size,), 1: (0,), 2: (size,)}
    result = start_processes("t", workers.zeros, args, start_method="fork", log_dir=tmp_path).wait(50)
    assert result is not None
    assert {0: size, 1: 0, 2: size} == {rank: len(value) for rank, value in result.return_values.items()}


def test_an_interrupted_function_has_failed(tmp_path: Path) -> None:
    """Who ends in KeyboardInterrupt returns nothing, and nobody waits for a value."""
    result = start_processes("t", workers.interrupt, {0: ()}, start_method="fork", log_dir=tmp_path).wait(50)
    assert result is not None
    assert (1, {}) == (result.failures[0].exitcode, result.return_values)
