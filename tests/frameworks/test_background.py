"""Work beside the training, and what becomes of a program whose last piece of work has failed."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hpc_elastic.frameworks.torch.background import Background

ENDS = """
import atexit, os, sys
from hpc_elastic.frameworks.torch.background import Background
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
