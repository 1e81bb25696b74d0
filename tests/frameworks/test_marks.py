"""When a state is whole on a device that is behind its program."""

from __future__ import annotations

import pytest

from hpc_elastic.frameworks.torch.memory.proof import DeviceMark, HostMark, Marks


class Device:
    """Passes the marks in its work one by one."""

    def __init__(self) -> None:
        self.made = 0
        self.passed = 0

    def mark(self) -> DeviceMark:
        """Return a mark after all work so far."""
        self.made += 1
        return FakeMark(self, self.made)


class FakeMark:
    """One place in the work of a device."""

    def __init__(self, device: Device, number: int) -> None:
        self._device = device
        self._number = number

    def query(self) -> bool:
        """Tell whether the device has passed it."""
        return self._device.passed >= self._number

    def synchronize(self) -> None:
        """Let the device work until here."""
        self._device.passed = max(self._device.passed, self._number)


@pytest.fixture
def device() -> Device:
    """A device."""
    return Device()


def steps(marks: Marks[int], device: Device, count: int) -> None:
    """Have a program make steps of an optimizer, each of which ends with a note."""
    for step in range(1, count + 1):
        marks.leave(device.mark)
        marks.wait()
        marks.note(step, device.mark())


@pytest.mark.parametrize(
    ("passed", "newest", "is_whole"),
    [
        (1, 1, True),  # the end of step 1: no mark before it, as nothing was noted
        (2, 1, False),  # step 2 changes the state
        (3, 2, True),
        (4, 2, False),
    ],
)
def test_the_device_says_which_step_its_state_is_of(
    device: Device, passed: int, newest: int, is_whole: bool
) -> None:
    """The program has called step 3, and the device hangs somewhere before."""
    marks = Marks[int]()
    steps(marks, device, 2)
    marks.leave(device.mark)
    device.passed = passed
    noted = marks.newest()
    assert noted is not None
    assert (newest, is_whole) == (noted.value, noted.is_whole())


def test_the_program_is_never_more_than_one_step_ahead(device: Device) -> None:
    """At the end of step 5 it has waited for that of step 4."""
    marks = Marks[int]()
    steps(marks, device, 5)
    noted = marks.newest()
    assert noted is not None
    assert (4, True) == (noted.value, noted.is_whole())


def test_a_step_that_the_device_has_not_ended_is_not_whole(device: Device) -> None:
    """It is the only one."""
    marks = Marks[int]()
    steps(marks, device, 1)
    noted = marks.newest()
    assert noted is not None
    assert not noted.is_whole()


def test_without_a_device_the_newest_step_is_whole_until_the_next_one_begins() -> None:
    """The marks of a host are passed at once."""
    marks = Marks[int]()
    assert marks.newest() is None
    marks.note(1, HostMark())
    marks.note(2, HostMark())
    noted = marks.newest()
    assert noted is not None
    assert (2, True) == (noted.value, noted.is_whole())
    marks.leave(HostMark)
    assert not noted.is_whole()
    marks.forget()
    assert marks.newest() is None
