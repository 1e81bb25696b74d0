"""Work beside the training, and what becomes of a program whose last piece of work has failed."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from hpc_elastic.frameworks.torch.background import Background, HostCopies
from hpc_elastic.frameworks.torch.train_state import load_torch

ENDS = """
import atexit, os, sys
from hpc_elastic.frameworks.torch.background import Background, HostCopies
from hpc_elastic.frameworks.torch.train_state import load_torch
atexit.register(print, "the program's own exit function")
def fails(): raise OSError(28, "No space left on device")
def works(): pass
def lasts(): import threading; threading.Event().wait()
def told(error): return f"told: {error}"
background = Background("a save", end_s=0.1 if "lasts" in sys.argv else 30.0, at_end=told)
background.start(globals()[sys.argv[1]])
exec(sys.argv[2])
"""


def ended(work: str, then: str = "") -> subprocess.CompletedProcess[str]:
    """Return the end of a program that has begun a piece of work."""
    words = [sys.executable, "-c", ENDS, work, then]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=150)


@pytest.mark.parametrize("then", ["", "sys.exit(0)", "sys.exit(3)", "os.fork() or sys.exit(0)"])
def test_a_program_whose_last_save_has_failed_does_not_end_well(then: str) -> None:
    """Its exit code says so, and the error is told; its own exit functions run all the same."""
    found = ended("fails", then)
    assert 120 == found.returncode, found
    assert 1 == found.stderr.count("told: [Errno 28] No space left on device")
    assert "the program's own exit function" in found.stdout


def test_a_save_that_does_not_end_is_a_failure_too() -> None:
    """Ranks that are dead do not answer; the program ends in a bounded time."""
    found = ended("lasts")
    assert 120 == found.returncode
    assert "told: it was not complete 0 s after the end of the program" in found.stderr


@pytest.mark.parametrize(
    ("work", "then"), [("works", ""), ("fails", "background.wait()"), ("works", "background.wait()")]
)
def test_a_program_that_has_heard_of_it_ends_as_it_wants(work: str, then: str) -> None:
    """Nothing else is printed."""
    found = ended(work, then)
    assert (0, "the program's own exit function\n", "") == (found.returncode, found.stdout, found.stderr)


def test_the_outcome_is_known_without_waiting() -> None:
    """None while the work is under way, then whether it has succeeded; an error is heard of once."""
    background, goes_on = Background("test"), threading.Event()
    assert background.look() is True

    def lasts() -> None:
        goes_on.wait()

    background.start(lasts)
    assert background.look() is None
    goes_on.set()
    background.join(60.0)
    assert background.look() is True

    def fails() -> None:
        raise OSError(5, "I/O error")

    background.start(fails)
    background.join(60.0)
    assert background.look() is False
    assert "I/O error" in str(background.wait())
    assert background.look() is True


def test_waiting_lasts_as_long_as_the_work() -> None:
    """And returns its error; no longer than a limit, if there is one. Without any work there is nothing."""
    background, goes_on, found = Background("test"), threading.Event(), list[BaseException | None]()
    assert background.wait() is None

    def fails() -> None:
        goes_on.wait()
        raise OSError(5, "I/O error")

    background.start(fails)
    assert background.wait(0.01) is None
    assert background.is_busy
    waiting = threading.Thread(target=lambda: found.append(background.wait()))
    waiting.start()
    waiting.join(0.1)
    assert [] == found
    goes_on.set()
    waiting.join(60.0)
    assert ["[Errno 5] I/O error"] == [str(error) for error in found]
    assert (False, None) == (background.is_busy, background.wait())


def test_what_follows_the_work_is_done_after_an_error_too() -> None:
    """The section of a save ends."""
    background, told = Background("test"), list[str]()

    def fails() -> None:
        told.append("work")
        raise OSError(5, "I/O error")

    background.start(fails, lambda: told.append("after"))
    assert "I/O error" in str(background.wait())
    assert ["work", "after"] == told


@pytest.mark.torch
def test_a_copy_of_a_state_lies_in_the_same_memory_each_time() -> None:
    """And has the values of its moment."""
    torch = pytest.importorskip("torch")
    copies, weight = HostCopies(load_torch()), torch.ones(3)
    first = copies.stage({"w": weight, "n": 1})
    weight.add_(1)
    assert ([1.0] * 3, 1) == (first["w"].tolist(), first["n"])
    second = copies.stage({"w": weight, "n": 2})
    assert ([2.0] * 3, 2) == (second["w"].tolist(), second["n"])
    assert first["w"].data_ptr() == second["w"].data_ptr() != weight.data_ptr()


class Gpu:
    """PyTorch's modules where there is a GPU, as far as a copy from it needs them; notes what is done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.cuda = self.stager = self.torch = self

    def is_available(self) -> bool:
        """Tell whether there is one."""
        return True

    def StateDictStager(self, *, pin_memory: bool, share_memory: bool) -> Gpu:  # noqa: N802 - PyTorch's name
        """Return what copies states."""
        self.done.append(f"pinned {pin_memory}, shared {share_memory}")
        return self

    def stage(self, content: dict[str, int], *, non_blocking: bool) -> dict[str, int]:
        """Begin a copy."""
        self.done.append("copied beside" if non_blocking else "copied")
        return content

    def current_stream(self) -> Gpu:
        """Return the stream of the training."""
        return self

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.done.append("waited for")


def test_a_copy_from_a_gpu_is_whole_when_it_is_returned() -> None:
    """It is made beside the program, and its end is waited for: the next step changes the state."""
    gpu = Gpu()
    lib: Any = gpu
    assert {"n": 1} == HostCopies(lib).stage({"n": 1})
    assert ["pinned True, shared False", "copied beside", "waited for"] == gpu.done
