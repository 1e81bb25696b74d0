"""One look at the workers of all nodes: each node writes down its own; one node reads all, and judges.

The Python stacks of workers are written down before anybody ends them. A worker that has called
`hpc_elastic.worker` writes them itself, in a handler in C: it does not matter where it is stuck. For any
other process py-spy does it, where that is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.multiprocessing.errors.failure import FailureRecord
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.hangs.groups import RankLook, frames_of, main_stack, odd_ones, ranks_text, vote_text
from hpc_elastic.node.workers import process_facts
from hpc_elastic.node.workers.process_facts import ProcessFacts, Usage, catches
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import open_plain
from hpc_elastic.typed_json import read

if TYPE_CHECKING:
    from hpc_elastic.node.hangs.watch import Sign
    from hpc_elastic.processes.control_group import Memory
    from hpc_elastic.processes.process import ChildProcess
    from hpc_elastic.worker.channel import Channel

_MUCH = 16 << 20  # bytes between two looks: more than log lines and trackers write in a minute
_MOST_AT_ONCE = 64  # files of nodes that are read before the agent shows again that it lives

FORMAT = 1
DUMP_S = 5.0  # the longest that stacks may take on one node
_MOST_STACK = 4000  # characters of a stack that go to other nodes
_ENDING = ".json"
_PY_SPY = "py-spy"
_SETTLED_S = 0.2  # a file that has not grown for so long is complete
_MOST_BYTES = 1 << 20
_NONE = (
    "no Python stacks: this process has not called hpc_elastic.worker (call worker.tick(step) after each"
    " step),\nand py-spy is not installed in the agent's environment (pip install py-spy)"
)
_BLOCKED = "no Python stacks: all threads of this process block signals"


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
    """The place and the reason of a look."""

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
        """The stopped workers (SIGSTOP)."""
        return tuple(one for one in self._subjects if self._facts[one.rank].is_stopped)

    def is_complete(self, now: float) -> bool:
        """Tell whether all that can be had is there, or has had its time; monotonic time [s]."""
        answered = [request.is_complete(now) for request in self._requests.values()]
        return all(answered) or now >= self._until

    def write(self, now: float) -> None:
        """Write down the looks, for people and for the node that puts all together.

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
            silence_s=round(one.silence_s, 1),
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
        from hpc_elastic.text import bytes_text  # noqa: PLC0415 - rare

        limit = "none" if memory.limit is None else bytes_text(memory.limit)
        return [f"control group: memory limit {limit}, {memory.kills} processes killed by the kernel for it"]


def read_looks(directory: str, nodes: Sequence[str], most: int) -> dict[str, tuple[RankLook, ...]]:
    """Return the looks of nodes up to now, by node.

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
    """The look of a node, as far as every version reads it."""

    ranks: tuple[Any, ...]


def _parse(data: bytes) -> tuple[RankLook, ...]:
    """Return the look of a node; nothing where that is damaged."""
    try:
        return tuple(RankLook.from_json(one) for one in read(_Ranks, data).ranks)
    except ValueError:
        return ()


def is_stopped(look: RankLook) -> bool:
    """Tell whether a rank is stopped (SIGSTOP)."""
    return ProcessFacts(look.pid, look.state).is_stopped


class HangVerdict(NamedTuple):
    """The result of a look."""

    failure: FailureRecord  # of the first of the odd ranks, else of the first suspect
    nodes: tuple[str, ...]  # where the odd ranks are; all nodes if none is odd
    step: int | None = None  # of the same rank


class Case(NamedTuple):
    """Why one node has asked all to look."""

    node: str
    why: str  # in words
    suspects: Collection[int]  # the ranks that made no progress


class Evidence(NamedTuple):
    """The looks of the nodes."""

    directory: str
    looks: tuple[RankLook, ...]
    missing: tuple[str, ...]  # nodes that have not


def gather(directory: str, nodes: Sequence[str], known: dict[str, tuple[RankLook, ...]]) -> Evidence:
    """Return the looks up to now.

    Args:
        directory: of the look.
        nodes: those that are to write.
        known: the looks of earlier turns, by node; gets the new ones, not many in one turn.
    """
    try:
        known |= read_looks(directory, [node for node in nodes if node not in known], _MOST_AT_ONCE)
    except OSError:
        pass
    looks = tuple(look for node in nodes for look in known.get(node, ()))
    return Evidence(directory, looks, tuple(node for node in nodes if node not in known))


def stopped(evidence: Evidence) -> tuple[RankLook, ...]:
    """Return the stopped ranks (SIGSTOP), for which the other ranks wait; empty if there are none."""
    return tuple(look for look in evidence.looks if is_stopped(look))


def stopped_text(looks: Sequence[RankLook]) -> str:
    """Return the sentence about stopped ranks."""
    return f"{ranks_text(looks)}: stopped (SIGSTOP): that time does not count"


def has_moved(evidence: Evidence, before: Mapping[int, RankLook], suspects: Collection[int]) -> bool:
    """Tell whether a suspect is somewhere else than at an earlier look, or has moved much data since.

    A rank that writes one large file or waits for an upload is in the same place for long.
    """
    known = ((look, before.get(look.rank)) for look in evidence.looks if look.rank in suspects)
    pairs = [(look, then) for look, then in known if then is not None]
    return any(look.frames != then.frames or look.moved - then.moved >= _MUCH for look, then in pairs)


def judge(case: Case, evidence: Evidence, wall_s: float) -> HangVerdict:
    """Return the odd ranks, else those that made no progress.

    Args:
        case: why there was a look.
        evidence: the looks.
        wall_s: wall time of now [s].
    """
    looks = evidence.looks
    vote = odd_ones(looks, case.suspects)
    odd = vote.odd or tuple(look for look in looks if look.rank in case.suspects)
    involved = (look.node for look in vote.odd or looks)
    silent = () if vote.odd else evidence.missing  # a rank without an answer may be the odd one as well
    nodes = tuple(dict.fromkeys((*involved, *silent))) or (case.node,)
    first = odd[0] if odd else RankLook(min(case.suspects), case.node)
    who = vote_text(vote, looks) if looks else f"rank {first.rank} ({case.node})"
    unheard = f"; nothing was heard from {', '.join(evidence.missing)}" if evidence.missing else ""
    failure = FailureRecord(
        rank=first.rank,
        local_rank=first.local_rank,
        node=first.node,
        pid=first.pid,
        exitcode=ExitCode.HUNG,
        message=f"{case.why}: {who}{unheard}; stacks of all ranks in {evidence.directory}",
        traceback=first.stack,
        log=first.log,
        timestamp=wall_s,
        place="" if first.innermost is None else " ".join(first.innermost.place),
        stands_out=bool(vote.odd) or (len(looks) == 1 and not evidence.missing),
    )
    return HangVerdict(failure, nodes, first.step)


class Stacks(NamedTuple):
    """The stacks of one process."""

    text: str = ""
    why_not: str = ""  # in words, where there are none


class StackRequest:
    """Has one process write down its stacks, or py-spy do it; never blocks.

    Args:
        channel: the worker's.
        pid: the worker, as it was started.
        scratch: private node-local directory.
        environ: for other programs.
        now: monotonic time [s].
    """

    def __init__(
        self, channel: Channel, pid: int, scratch: str, environ: Mapping[str, str], now: float
    ) -> None:
        self.pid = channel.pid or pid
        self._path = channel.stacks_path
        self._spy: ChildProcess | None = None
        self._why_not = ""
        self._size, self._grew_at = 0, now
        number = channel.stacks_signal
        if channel.pid and catches(self.pid, number) and self._ask(number):
            return
        program = shutil.which(_PY_SPY, path=environ.get("PATH"))
        if program is None:
            self._why_not = _BLOCKED if channel.pid and number else _NONE
            return
        self._path = os.path.join(scratch, f"py-spy.{self.pid}")
        self._start(program, environ)

    def _ask(self, number: int) -> bool:
        try:
            os.truncate(self._path, 0)
            os.kill(self.pid, number)
        except OSError as error:
            self._why_not = f"no Python stacks: {error}"
            return False
        return True

    def _start(self, program: str, environ: Mapping[str, str]) -> None:
        from hpc_elastic.errors import InputError  # noqa: PLC0415 - rare
        from hpc_elastic.processes.process import ProcessSpec, spawn  # noqa: PLC0415 - rare

        argv = (program, "dump", "--pid", str(self.pid))
        try:
            self._spy = spawn(ProcessSpec(argv, environ, stdout=self._path, stderr=self._path))
        except InputError as error:
            self._why_not = f"no Python stacks: {error}"

    def is_complete(self, now: float) -> bool:
        """Tell whether all that can be had is there; monotonic time [s]."""
        if self._spy is not None:
            return self._spy.poll() is not None
        if self._why_not:
            return True
        size = _size(self._path)
        if size != self._size:
            self._size, self._grew_at = size, now
        return size > 0 and now - self._grew_at >= _SETTLED_S

    def take(self) -> Stacks:
        """Return the stacks, and leave nothing behind."""
        text = _tail(self._path) if not self._why_not else ""
        why_not = self._why_not
        if self._spy is not None:
            text, why_not = self._end_spy(self._spy, text)
            self._spy = None
        if not text and not why_not:
            why_not = "no Python stacks: the process has not answered"
        return Stacks(text, why_not)

    def _end_spy(self, spy: ChildProcess, text: str) -> tuple[str, str]:
        """Return the output of py-spy, or else the reason for none."""
        is_late = spy.poll() is None
        if is_late:
            spy.signal_group(signal.SIGKILL)
        if spy.poll() is not None:  # one that hangs itself is not waited for
            spy.reap()
        _remove(self._path)
        if "Thread" in text and not is_late:
            return text, ""
        how = "took too long" if is_late else "failed"
        return "", f"no Python stacks: py-spy {how}: {text.strip() or 'it said nothing'}"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _tail(path: str) -> str:
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
