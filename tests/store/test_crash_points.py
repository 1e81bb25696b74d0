"""Whoever reads sees the old value or the new one, wherever a writer is killed, fails or freezes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.crash_operations import NEW, OLD
from tests.store.crash_points import FROZEN, KILLED, Point, all_operations

REPOSITORY = Path(__file__).parents[2]
_IMPOSSIBLE = 2  # exit code where this machine allows no tracing

AS_ANOTHER = {
    "kv add": "kv set",
    "kv compare_set": "kv set",
    "submission recorded": "submission announced",
}
"""Operations that write by the same calls as another one; the table, measured each night, has all."""

IN_PLACE = """
import os, sys
from tests.store import crash_points, tracing
from tests.store.crash_operations import VALUE_A, VALUE_B, Operation, one_of

def write(root, value):
    with open(os.path.join(root, "value"), "wb", buffering=0) as file:
        file.write(value[:5000]), file.write(value[5000:])

def look(root):
    with open(os.path.join(root, "value"), "rb") as file:
        return one_of(file.read(), VALUE_A, VALUE_B)

naive = Operation("naive", lambda root: write(root, VALUE_A), lambda root: write(root, VALUE_B), look, look)
if tracing.why_not():
    sys.exit(2)
for point in crash_points.points_of(naive):
    print(*point.faults, sep="\\n")
"""


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, which has one thread and can be forked safely."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, *argv], env=environ, capture_output=True, text=True, check=False)
    if done.returncode == _IMPOSSIBLE:
        pytest.skip(done.stderr.strip() or "this machine allows no tracing")
    return done


@pytest.mark.slow
@pytest.mark.timeout(300)  # a hundred to three hundred children, also on a busy machine
@pytest.mark.parametrize("name", [one.name for one in all_operations() if one.name not in AS_ANOTHER])
def test_nothing_is_torn_wherever_a_writer_is_interrupted(name: str) -> None:
    """A kill, an error, or a freeze at any system call: old or new value, next writer free, all swept."""
    done = _run("-m", "tests.store.crash_points", "--few", name)
    assert "" == done.stderr
    assert 0 == done.returncode
    assert done.stdout.count(": killed:") > 0


def test_a_naive_writer_is_found_out() -> None:
    """Writing in place is reported as torn, and as an error that leaves the new value."""
    said = _run("-c", IN_PLACE).stdout
    assert "torn: neither: b''" in said
    assert f"torn: neither: b'{'b' * 100}" in said


def _point(error: int, seen: str, said: str = "", *, failed: bool = False) -> Point:
    return Point("put", 3, "write", error, seen, said, failed, 0, "")


@pytest.mark.parametrize(
    ("point", "fault"),
    [
        (_point(KILLED, "neither: b''"), "torn"),
        (_point(FROZEN, OLD, "StoreError", failed=True), "did not get over a sweep"),
        (_point(errno.EIO, OLD), "nothing was raised"),
        (_point(errno.EINTR, OLD, "Interrupted", failed=True), "not tried again"),
        (_point(errno.EIO, NEW, "/run/a: Input/output error", failed=True), "told as an error"),
        (_point(errno.EIO, OLD, "/run/a: broken", failed=True), "does not name the reason"),
        (_point(errno.EIO, OLD, "Input/output error", failed=True), "does not name the file"),
        (_point(errno.EIO, OLD, "/run/.tmp.a: Input/output error", failed=True), "does not name the file"),
    ],
)
def test_what_must_not_be_is_named(point: Point, fault: str) -> None:
    """Each kind of fault is told apart."""
    assert fault in " ".join(point.faults)


def test_what_may_be_is_no_fault() -> None:
    """Old or new after a kill; after an error the old value with the path and the reason."""
    assert [] == _point(KILLED, OLD).faults + _point(KILLED, NEW).faults + _point(FROZEN, NEW).faults
    assert [] == _point(errno.EIO, OLD, "/a/run/b: Input/output error", failed=True).faults
