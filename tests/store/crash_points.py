"""What readers see when a writer dies, or an error comes, at each of its system calls.

Run as a program it prints the table of which docs/crash-safety.md has the sums:

    python -m tests.store.crash_points                 the table
    python -m tests.store.crash_points append          one operation, every system call
    python -m tests.store.crash_points --few append    of the errors that refuse each call has one
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.store import leftovers
from tests.store import crash_kv, crash_operations, tracing
from tests.store.crash_operations import HALF, NEW, OLD, SAME, Operation, make_run
from tests.store.tracing import Ran

SHELF = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk only makes it slow
PASSING = (errno.EINTR, errno.ESTALE)
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
KILLED, FROZEN = 0, -1
STREAMED = ("write", "fsync")  # of `atomic_write`, whose data the training code alone could write again


class Point(NamedTuple):
    """What came of interfering at one system call.

    Attributes:
        operation: name of the operation.
        at: number of the system call, from 0.
        call: its name.
        error: what it failed with; `KILLED`: the writer was killed before it; `FROZEN`: it stood there
            until others took it for dead and swept its private files away.
        seen: what a reader saw afterwards: "old", "new", or what was wrong.
        said: what the operation returned or raised; empty after a kill.
        failed: whether it raised.
        left: files that were left over.
        trouble: what the next writer or the sweep did wrong; empty for nothing.
        is_sure: see `Operation`.
    """

    operation: str
    at: int
    call: str
    error: int
    seen: str
    said: str
    failed: bool
    left: int
    trouble: str
    is_sure: bool = True

    @property
    def faults(self) -> list[str]:
        """What must not be; empty if all is well."""
        found = [self.trouble] if self.trouble else []
        if self.seen not in (OLD, NEW, SAME, *([] if self.error else [HALF])):
            found.append(f"torn: {self.seen}")
        if self.error == FROZEN and (self.failed or self.seen == OLD):
            found.append(f"a frozen writer did not get over a sweep ({self.said})")
        if self.error > 0:
            found += self._faults_of_error()
        return found

    def _faults_of_error(self) -> list[str]:
        found = []
        if not self.failed and self.seen == OLD:
            found.append("nothing was raised, and it did not happen")
        is_streamed = self.operation == "atomic_write" and self.call in STREAMED
        if self.failed and self.error in PASSING and not is_streamed:
            found.append("an error that passes was not tried again")
        if self.failed and self.seen == NEW and self.call != "fsync" and self.is_sure:
            found.append("it happened, and was told as an error")
        if self.failed and os.strerror(self.error) not in self.said:
            found.append("the error does not name the reason")
        if self.failed and ("/run/" not in self.said or ".tmp." in self.said):
            found.append("the error does not name the file")
        return [f"{text} ({self.said})" for text in found]


def all_operations() -> list[Operation]:
    """Return the operations in the order of the table."""
    return [*crash_operations.operations(), *crash_kv.operations()]


def _in_fresh_run(operation: Operation, work: Callable[[str], Point]) -> Point:
    place = tempfile.mkdtemp(prefix="crash-", dir=SHELF)
    try:
        root = os.path.join(place, "run")
        make_run(root)
        operation.prepare(root)
        return work(root)
    finally:
        shutil.rmtree(place)


def points_of(operation: Operation, *, few: bool = False) -> list[Point]:
    """Kill at every system call of an operation, and after the last; let each of them fail.

    Args:
        operation: what is interrupted.
        few: of the errors that refuse each call has one, in turns, not all.
    """
    calls: list[str] = []

    def act_here(root: str) -> Point:
        operation.act(root)  # loads modules, so that the children do not
        return _judge(operation, root, Ran((), "", failed=False), 0, "-", KILLED)

    def count(root: str) -> Point:
        ran = tracing.run(lambda: operation.act(root))
        calls.extend(ran.calls)
        return _judge(operation, root, ran, len(calls), "-", 0)

    _in_fresh_run(operation, act_here)
    found = [_in_fresh_run(operation, count)]
    for at, call in enumerate(calls):
        for error in (KILLED, FROZEN, *(_some_of(call, at) if few else _errors_of(call))):
            found.append(_in_fresh_run(operation, partial(_point, operation, at=at, error=error)))  # noqa: PERF401
    return found


def _errors_of(call: str) -> tuple[int, ...]:
    """Return what a system call is made to fail with."""
    if call == "other" or call in tracing.NEVER_FAIL:
        return ()
    return (*PASSING, *REFUSED, *([errno.EMFILE] if call == "openat" else []))


def _some_of(call: str, at: int) -> tuple[int, ...]:
    """Return the errors that pass, and one that refuses; neighbours of a call get the others of these."""
    known = _errors_of(call)
    return tuple(error for error in known if error not in REFUSED or error == REFUSED[at % len(REFUSED)])


def _interference(root: str, error: int) -> tracing.Interference:
    if error == KILLED:
        return tracing.kill
    if error > 0:
        return tracing.fail(error)

    def sweep(_pid: int) -> int:
        leftovers.sweep(_directories(root), age_s=-1)
        return 0

    return sweep


def _point(operation: Operation, root: str, *, at: int, error: int) -> Point:
    ran = tracing.run(lambda: operation.act(root), at=at, interfere=_interference(root, error))
    call = ran.calls[at] if at < len(ran.calls) else "-"
    return _judge(operation, root, ran, at, call, error)


def _judge(operation: Operation, root: str, ran: Ran, at: int, call: str, error: int) -> Point:
    trouble = ""
    seen = operation.look(root)
    left = _left(root)
    try:
        operation.follow(root)
    except (AssertionError, OSError, HpcElasticError) as problem:
        trouble = f"the next writer was blocked: {problem!r}"
    leftovers.sweep(_directories(root))
    if _left(root) and not trouble:
        trouble = "a sweep left something over"
    return Point(
        operation.name, at, call, error, seen, ran.said, ran.failed, left, trouble, operation.is_sure
    )


def _directories(root: str) -> list[str]:
    paths = RunPaths(root)
    return [*leftovers.run_directories(paths), os.path.join(root, "fresh"), os.path.join(root, "job")]


def _left(root: str) -> int:
    hidden = [name for _, _, names in os.walk(root) for name in names if name.startswith(".")]
    return len(hidden)


def row(points: list[Point]) -> str:
    """Return the line of one operation in the table."""
    calls = max(point.at for point in points)
    killed = Counter(point.seen for point in points if point.error == KILLED)
    left = max(point.left for point in points if point.error == KILLED)
    survived = sum(point.error == FROZEN and not point.failed for point in points)
    errors = [point for point in points if point.error > 0]
    refused = sum(point.failed and point.seen != NEW for point in errors)
    done = sum(not point.failed and point.seen != OLD for point in errors)
    both = sum(point.failed and point.seen == NEW for point in errors)
    faults = sum(bool(point.faults) for point in points)
    died = (killed.total() - killed[NEW], killed[NEW], left)
    cells = (calls, *died, survived, len(errors), done, refused, both, faults)
    return "| " + " | ".join((points[0].operation, *map(str, cells))) + " |"


COLUMNS = (
    "operation",
    "system calls",
    "killed: old value",
    "killed: new value",
    "left over at most",
    "frozen and swept: continued",
    "errors injected",
    "went through",
    "refused, nothing changed",
    "done, but reported as an error",
    "anything else",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def main(words: list[str]) -> int:
    """Print the table, or the points of the operations that are named; 1 if something is wrong."""
    reason = tracing.why_not()
    if reason:
        sys.stderr.write(f"cannot be measured on this machine: {reason}\n")
        return 2
    few, words = "--few" in words, [word for word in words if word != "--few"]
    known = all_operations()
    chosen = [operation for operation in known if not words or operation.name in words]
    if len(chosen) < len(words):
        sys.stderr.write(f"there are: {', '.join(operation.name for operation in known)}\n")
        return 2
    lines, faults = [], []
    for operation in chosen:
        points = points_of(operation, few=few)
        lines += [row(points)] if not words else [_line(point) for point in points]
        faults += [f"{_line(point)}: {fault}" for point in points for fault in point.faults]
    print("\n".join([HEAD, *lines] if not words else lines))  # noqa: T201 - for people
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    return 1 if faults else 0


def _line(point: Point) -> str:
    named = {KILLED: "killed" if point.call != "-" else "ran", FROZEN: "frozen"}
    what = named.get(point.error) or errno.errorcode[point.error]
    return (
        f"{point.operation}: {point.at} {point.call}: {what}: {point.seen}, {point.left} left; {point.said}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
