"""The word of a worker that ends a round: its node is bad, or no restart helps. Pure."""

from __future__ import annotations

from enum import Enum

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import Prose


class Verdict(str, Enum):
    """The meaning of a worker's word about its round."""

    BAD_NODE = "bad_node"  # its node is to stay out of the run
    GIVE_UP = "give_up"  # no restart helps: the run is to end as failed


class WorkerWord(NamedTuple):
    """The word of a worker that has ended a round."""

    verdict: Verdict
    rank: int
    node: str
    reason: Prose  # as the worker gave it

    @property
    def text(self) -> str:
        """The word as a sentence for people."""
        says = "says that its node is bad" if self.verdict is Verdict.BAD_NODE else "has given the run up"
        return f"rank {self.rank} on {self.node} {says}: {self.reason}"


class BadNode(NamedTuple):
    """A node that is bad by the word of a worker."""

    node: str
    reason: str  # for people


def bad_node(word: WorkerWord | None) -> BadNode | None:
    """Return the node that is bad by a word; None if the word is another, or there is none."""
    if word is None or word.verdict is not Verdict.BAD_NODE:
        return None
    return BadNode(word.node, f"rank {word.rank} says: {word.reason}")
