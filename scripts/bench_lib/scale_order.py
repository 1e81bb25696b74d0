"""What the processes of a measure of scale are told."""

from __future__ import annotations

from typing import NamedTuple

GO = "go"  # the name in the control directory at which all processes start
_FIRST = 3  # nodes that may form a round
_FEW = 4  # nodes per process that are no crowd


class Order(NamedTuple):
    """What a process is to do.

    Attributes:
        system: ``known`` or ``unknown`` (hpc_elastic, told the node names or not),
            ``tcp`` or ``file`` (torch).
        place: run directory; of torch's stores the endpoint.
        control: directory by which the processes start together.
        process: this process's number.
        processes: how many processes there are, at least two.
        nodes: how many nodes there are.
        delay_s: how much longer each file-system call takes [s].
        counted: count operations and calls.
    """

    system: str
    place: str
    control: str
    process: int
    processes: int
    nodes: int
    delay_s: float = 0.0
    counted: bool = False

    @property
    def mine(self) -> range:
        """The nodes of this process.

        Where there are many, the first nodes have a process to themselves: one of them reads what all
        others offer and forms the round, for which a real node has a machine to itself.
        """
        if self.nodes <= _FEW * self.processes:
            return range(self.process, self.nodes, self.processes)
        if self.process == 0:
            return range(_FIRST)
        return range(_FIRST + self.process - 1, self.nodes, self.processes - 1)
