"""The moments between which a state is whole, also on a GPU that is behind its program.

A program hands work to a GPU and goes on. When a rank is asked for its state, the GPU may still wait in a
collective that never ends, while the program has already called the next step of the optimizer. So the GPU
itself passes a mark at the end of each step, and another one before the state changes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Value = TypeVar("Value")


class DeviceMark(Protocol):
    """A place in the work of a device, for example an event of CUDA."""

    def query(self) -> bool:
        """Tell whether the device has passed it."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class HostMark:
    """A place in the work of this process, which is passed as soon as it is there."""

    def query(self) -> bool:
        """Tell that it is passed."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class Noted(Generic[Value]):
    """The notes of the end of a step, and where they hold on the device."""

    def __init__(self, value: Value, done: DeviceMark) -> None:
        self.value = value
        self.done = done
        self.left: DeviceMark | None = None
        """Passed before the state changes; None: the program has not come to that."""

    def is_whole(self) -> bool:
        """Tell whether the state on the device is the one that was noted."""
        return self.done.query() and (self.left is None or not self.left.query())


class Marks(Generic[Value]):
    """The ends of the last two steps.

    Two are enough: the program is never more than one step ahead of the device.
    """

    def __init__(self) -> None:
        self._noted: tuple[Noted[Value], ...] = ()

    def forget(self) -> None:
        """Forget all steps."""
        self._noted = ()

    def leave(self, new: Callable[[], DeviceMark]) -> None:
        """Take note that the state changes from here on."""
        noted = self.unchanged
        if noted is not None:
            noted.left = new()

    @property
    def unchanged(self) -> Noted[Value] | None:
        """The newest step that was noted, if the program has not come to change the state since."""
        return self._noted[-1] if self._noted and self._noted[-1].left is None else None

    def wait(self) -> None:
        """Wait until the device has ended the newest step that was noted."""
        if self._noted:
            self._noted[-1].done.synchronize()

    def note(self, value: Value, done: DeviceMark) -> None:
        """Take note of the end of a step."""
        self._noted = (*self._noted[-1:], Noted(value, done))

    def newest(self) -> Noted[Value] | None:
        """Return the newest step that the device has ended; the one before it, if there is none yet.

        None if nothing was noted.
        """
        noted = self._noted
        return next((one for one in reversed(noted) if one.done.query()), noted[0] if noted else None)
