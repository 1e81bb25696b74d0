"""Waiting for what a cluster is to do, the same for the fake and for a real one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from hpc_elastic.clock import Clock, SystemClock


class ConditionTimeoutError(AssertionError):
    """A condition did not come true in time; the text shows what Slurm did meanwhile."""


class Waits(ABC):
    """A cluster of which tests wait for something."""

    _poll_s = 0.1
    _clock: Clock = SystemClock()

    @abstractmethod
    def job(self, job: str) -> dict[str, str]:
        """Return the fields of ``scontrol show job``; empty if Slurm does not know the job."""

    @abstractmethod
    def node_state(self, name: str) -> str:
        """Return the state of a node with its flags, such as `idle`, `mixed+drain`, `down+not_responding`."""

    @abstractmethod
    def story(self) -> str:
        """Return queue, nodes, and the end of the controller's log."""

    @property
    @abstractmethod
    def node_names(self) -> list[str]:
        """Names of the nodes, in order."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until a condition holds.

        Args:
            predicate: the condition.
            timeout: limit [s].
            what: the condition in words, for the message.

        Raises:
            ConditionTimeoutError: it did not hold in time; shows queue, nodes and the controller's log.
        """
        deadline = self._clock.monotonic() + timeout
        while not predicate():
            if self._clock.monotonic() > deadline:
                raise ConditionTimeoutError(f"Waited {timeout:g} s in vain for {what}.\n{self.story()}")
            self._clock.sleep(self._poll_s)

    def wait_state(self, job: str, state: str, timeout: float = 60) -> None:
        """Wait until a job is in a state such as `RUNNING`."""
        self.wait_for(lambda: self.job(job).get("JobState") == state, timeout, f"job {job} to be {state}")

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until every node is idle and answers."""
        names = self.node_names
        self.wait_for(lambda: {"idle"} == set(map(self.node_state, names)), timeout, "all nodes to be idle")
