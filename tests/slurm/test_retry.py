"""Trying again what may come back."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from hpc_elastic.errors import (
    HpcElasticError,
    RunDirError,
    SlurmCommandError,
    StoreError,
    TakenOverError,
    UnfitFileError,
)
from hpc_elastic.slurm.run_jobs.job_start import PATIENCE_S, Patience
from hpc_elastic.testing.clock import FakeClock

AWAY = SlurmCommandError(("scontrol",), 1, "Unable to contact\nslurm controller")


class Flaky:
    """Fails some times, then returns how often it was called."""

    def __init__(self, *errors: HpcElasticError | OSError) -> None:
        self.calls = 0
        self._errors: Iterator[HpcElasticError | OSError] = iter(errors)

    def __call__(self) -> int:
        """Fail, or return."""
        self.calls += 1
        for error in self._errors:
            raise error
        return self.calls


def test_what_comes_back_is_waited_for_and_told_once() -> None:
    """The pauses grow, up to a limit."""
    clock, said = FakeClock(), list[str]()
    began = clock.monotonic()
    patiently = Patience(clock, said.append, ", then the job ends")
    assert 7 == patiently(Flaky(*[StoreError("no answer\n  of it")] * 6))
    assert 1 + 2 + 4 + 8 + 15 + 15 == clock.monotonic() - began
    assert ["trying again for up to 300 s, then the job ends: no answer of it"] == said


def test_the_file_systems_own_errors_pass_as_well() -> None:
    """Records of jobs are read without the journal between."""
    clock, said = FakeClock(), list[str]()
    patiently = Patience(clock, said.append, ", then the job ends")
    assert 2 == patiently(Flaky(OSError(5, "Input/output error")))
    assert ["trying again for up to 300 s, then the job ends: [Errno 5] Input/output error"] == said


def test_a_file_that_is_none_of_the_runs_does_not_become_one() -> None:
    """It is no file system that is away."""
    clock, said = FakeClock(), list[str]()
    odd = UnfitFileError("/run/record", "it is a FIFO", errno=22, fix="take it away")
    with pytest.raises(UnfitFileError):
        Patience(clock, said.append)(Flaky(odd))
    assert [] == said


def test_only_what_may_pass_is_tried_again() -> None:
    """Slurm's errors where that was said, with no word on what becomes of the job."""
    clock, said = FakeClock(), list[str]()
    patiently = Patience(clock, said.append, ", then the job ends")
    with pytest.raises(SlurmCommandError):
        patiently(Flaky(AWAY))
    assert [] == said
    assert 2 == patiently(Flaky(AWAY), 60.0, SlurmCommandError)
    assert said[0].startswith("trying again for up to 60 s: ")
    with pytest.raises(RunDirError):
        patiently(Flaky(RunDirError("it is gone")), passing=SlurmCommandError)
    with pytest.raises(TakenOverError):
        patiently(Flaky(TakenOverError("it belongs to bob")), passing=RunDirError)


def test_the_shared_directory_is_waited_for_once() -> None:
    """Its waits count for all steps together; those for Slurm's answers count for each step."""
    clock, said = FakeClock(), list[str]()
    patiently = Patience(clock, said.append)
    began = clock.monotonic()
    for _ in range(3):
        with pytest.raises(StoreError):
            patiently(Flaky(*[StoreError("no answer")] * 1000))
    assert PATIENCE_S <= clock.monotonic() - began < PATIENCE_S + 15
    assert 1 == len(said)
    began = clock.monotonic()
    for _ in range(2):
        with pytest.raises(SlurmCommandError):
            patiently(Flaky(*[AWAY] * 1000), 60.0, SlurmCommandError)
    assert 120.0 <= clock.monotonic() - began < 150.0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", [StoreError, OSError])
def test_a_full_disk_is_waited_for_a_minute(number: int, kind: type[StoreError | OSError]) -> None:
    """Somebody has to make room; room that is made meanwhile is taken."""
    full = StoreError("journal: full", errno=number) if kind is StoreError else OSError(number, "full")
    clock, said = FakeClock(), list[str]()
    began = clock.monotonic()
    assert 3 == Patience(clock, said.append)(Flaky(full, full))
    with pytest.raises(kind):
        Patience(clock, said.append, ", then the job ends with 76")(Flaky(*[full] * 1000))
    assert 60.0 <= clock.monotonic() - began < 60.0 + 20
    assert said[1].startswith("trying again for up to 60 s, then the job ends with 76: ")


def test_patience_ends() -> None:
    """With the last error."""
    clock = FakeClock()
    began = clock.monotonic()
    with pytest.raises(StoreError, match="no answer"):
        Patience(clock, print)(Flaky(*[StoreError("no answer")] * 1000))
    assert PATIENCE_S <= clock.monotonic() - began < PATIENCE_S + 15
