"""One look at where the workers are: each node writes down its own, one node reads what all have written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_elastic.node.hangs.groups import RankLook, frames_of, main_stack
from hpc_elastic.node.workers import process_facts
from hpc_elastic.node.workers.process_facts import ProcessFacts, Usage
from hpc_elastic.node.workers.stacks import StackRequest
from hpc_elastic.store import files
from hpc_elastic.typed_json import read

if TYPE_CHECKING:
    from hpc_elastic.node.hangs.watch import Sign
    from hpc_elastic.node.workers.memory import Memory
    from hpc_elastic.worker.channel import Channel

FORMAT = 1
DUMP_S = 5.0  # the longest that stacks may take on one node
_MOST_STACK = 4000  # characters of a stack that other nodes are told
_ENDING = ".json"


class Subject(NamedTuple):
    """A worker that is looked at."""

    rank: int
    local_rank: int
    pid: int  # as it was started
    channel: Channel
    sign: Sign
    silence_s: float
    usage: Usage | None  # its CPU time some while ago
    log: str = ""  # its stderr


class LookPlace(NamedTuple):
    """Where a look happens and what for."""

    node: str
    directory: str  # gets the stacks of all ranks
    scratch: str  # private, on this node
    environ: Mapping[str, str]
    memory: Memory | None


class Look:
    """The look of one node at its workers; never blocks.

    Args:
        place: where to write.
        subjects: the workers.
        now: monotonic time [s].
    """

    def __init__(self, place: LookPlace, subjects: Sequence[Subject], now: float) -> None:
        self._place = place
        self._subjects = subjects
        self._until = now + DUMP_S
        self._facts = {one.rank: process_facts.facts_of(one.channel.pid or one.pid) for one in subjects}
        self._requests = {
            one.rank: StackRequest(one.channel, one.pid, place.scratch, place.environ, now)
            for one in subjects
        }

    @property
    def stopped(self) -> tuple[Subject, ...]:
        """The workers that somebody has stopped."""
        return tuple(one for one in self._subjects if self._facts[one.rank].is_stopped)

    def is_complete(self, now: float) -> bool:
        """Tell whether all that can be had is there, or has had its time; monotonic time [s]."""
        answered = [request.is_complete(now) for request in self._requests.values()]
        return all(answered) or now >= self._until

    def write(self, now: float) -> None:
        """Write down what was seen, for people and for the node that puts all together.

        Raises:
            OSError: the run directory refused.
        """
        os.makedirs(self._place.directory, mode=0o700, exist_ok=True)
        looks = [self._write_rank(one, now) for one in self._subjects]
        data = {"format": FORMAT, "node": self._place.node, "ranks": [look.to_json() for look in looks]}
        path = os.path.join(self._place.directory, self._place.node + _ENDING)
        files.replace(path, json.dumps(data).encode(), durable=False)

    def cancel(self) -> None:
        """Leave nothing behind."""
        for request in self._requests.values():
            request.take()

    def _write_rank(self, one: Subject, now: float) -> RankLook:
        request, facts = self._requests[one.rank], self._facts[one.rank]
        after = process_facts.usage(request.pid, now)
        words = process_facts.doing(facts, one.usage, after)
        stacks = request.take()
        stack = main_stack(stacks.text)
        look = RankLook(
            rank=one.rank,
            node=self._place.node,
            step=one.sign.step,
            section=" > ".join(section.name for section in one.sign.sections),
            frames=frames_of(stack),
            state="T" if facts.is_stopped else facts.state,
            doing=words,
            local_rank=one.local_rank,
            pid=request.pid,
            log=one.log,
            stack=stack[:_MOST_STACK],
            moved=process_facts.moved_bytes(request.pid),
        )
        lines = [
            f"rank {one.rank} (local rank {one.local_rank}) on {self._place.node}",
            f"{look.where}; no sign of life for {one.silence_s:.1f} s",
            *process_facts.report(facts, words, one.usage, after),
            *self._memory_lines(),
            "",
            stacks.text.rstrip() or stacks.why_not,
            *([] if stacks.text else process_facts.kernel_report(request.pid)),
            "",
        ]
        path = os.path.join(self._place.directory, f"rank{one.rank}.txt")
        files.replace(path, "\n".join(lines).encode(errors="replace"), durable=False)
        return look

    def _memory_lines(self) -> list[str]:
        memory = self._place.memory
        if memory is None:
            return []
        from hpc_elastic.node.workers.memory import size_text  # noqa: PLC0415 - rare

        limit = "none" if memory.limit is None else size_text(memory.limit)
        return [f"control group: memory limit {limit}, {memory.kills} processes killed by the kernel for it"]


def read_looks(directory: str, nodes: Sequence[str], most: int) -> dict[str, tuple[RankLook, ...]]:
    """Return what nodes have written down up to now, by node.

    Args:
        directory: of the look.
        nodes: whose is wanted.
        most: files that are opened.

    Raises:
        OSError: the run directory refused.
    """
    there = set(files.list_names(directory))
    written = [node for node in nodes if node + _ENDING in there][:most]
    return {node: _parse(files.read(os.path.join(directory, node + _ENDING)) or b"") for node in written}


class _Ranks(NamedTuple):
    """What a node writes down, as far as every version reads it."""

    ranks: tuple[Any, ...]


def _parse(data: bytes) -> tuple[RankLook, ...]:
    """Return what a node has written down; nothing where that is damaged."""
    try:
        return tuple(RankLook.from_json(one) for one in read(_Ranks, data).ranks)
    except ValueError:
        return ()


def is_stopped(look: RankLook) -> bool:
    """Tell whether somebody has stopped a rank."""
    return ProcessFacts(look.pid, look.state).is_stopped
