"""A program on a client that does what a test asks for, on the shared file system.

One line is one request or answer, a Python literal: `(id, function, arguments)`, answered by
`(id, error, result)`, where an error is None or `(type, text, errno)`. Requests run side by side.
"""

from __future__ import annotations

import ast
import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.store.files import make_directories
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.waiting import wait_until

LIMIT_S = 30.0


def make_run(root: str) -> None:
    """Make a run directory as an agent does."""
    paths = RunPaths(root)
    for directory in (paths.root, *paths.directories(), os.path.join(root, "kv")):
        os.makedirs(directory, mode=0o700)


def store(root: str, method: str, *args: Any, **named: Any) -> Any:
    """Call a method of the store in a directory."""
    return getattr(SharedDirStore(root), method)(*args, **named)


def race(root: str, me: bytes, last: int) -> list[int]:
    """Try to append every number up to the last; returns those that were won."""
    own = SharedDirStore(root)
    return [number for number in range(1, last + 1) if own.append("race", number, me)]


def race_for_names(root: str, me: bytes, count: int) -> list[int]:
    """Try to create every one of many names; returns the numbers of those that were won."""
    own = SharedDirStore(root)
    return [number for number in range(count) if own.create("names", f"n{number}", me)]


def race_for_directories(root: str, me: str, count: int) -> int:
    """Make the same trees as all others, and a record in each; returns how many were made."""
    own = SharedDirStore(root)
    for number in range(count):
        make_directories(os.path.join(root, f"t{number}", "logs", me))
        make_directories(os.path.join(root, f"t{number}", "journal"))
        own.create(os.path.join(f"t{number}", "journal"), f"{me}.record", b"")
        own.mark(os.path.join(f"t{number}", "journal"), f"{me}.mark")
        own.put(os.path.join(f"t{number}", "journal"), f"{me}.value", b"")
        with open(os.path.join(root, f"t{number}", "logs", me, "stdout"), "x", encoding="utf-8"):
            pass
    return count


def put_values(root: str, count: int, size: int) -> None:
    """Write a file again and again, each time full of another byte."""
    own = SharedDirStore(root)
    for number in range(count):
        own.put("nodes", "one", bytes([number % 256]) * size)


def torn_values(root: str, last: int, size: int) -> list[bytes]:
    """Read that file until it is full of the last byte; returns what was neither old nor new."""
    own, torn = SharedDirStore(root), []

    def is_last() -> bool:
        try:
            value = own.get("nodes", "one") or b""
        except StoreError as error:
            if error.errno != errno.ESTALE:  # Gluster, while the file is replaced without a pause
                raise
            return False
        if len(value) not in {0, size} or len(set(value)) > 1:
            torn.append(value[:100])
        return value[:1] == bytes([last % 256])

    # NFS 4 was seen to show an old value for half a minute; how fresh it is, is not the question here
    wait_until(is_last, "the last value", timeout_s=2 * LIMIT_S, interval_s=0)
    return torn


def beat(root: str, node: str, count: int) -> None:
    """Advance a node's mark again and again, as a heartbeat does."""
    own = SharedDirStore(root)
    own.mark("members", f"{node}+0")
    for number in range(1, count + 1):
        own.mark("members", f"{node}+{number}", instead_of=f"{node}+{number - 1}")


def watch_beats(root: str, node: str, last: int) -> list[int]:
    """Look at a node's mark until it is the last one; returns the highest number of each look.

    Who watches beats, too, as agents do: on NFS 3 a rename can stay hidden from a client until that
    changes the directory itself.
    """
    own, seen, clock = SharedDirStore(root), [], SystemClock()
    me, beats, beat_at = f"watcher.{os.uname().nodename}", 0, clock.monotonic()
    own.mark("members", f"{me}+0")

    def is_last() -> bool:
        nonlocal beats, beat_at
        if clock.monotonic() - beat_at >= 1.0:
            own.mark("members", f"{me}+{beats + 1}", instead_of=f"{me}+{beats}")
            beats, beat_at = beats + 1, clock.monotonic()
        numbers = [int(name.partition("+")[2]) for name in own.list("members") if name.startswith(f"{node}+")]
        seen.extend([max(numbers)] if numbers else [])
        return last in numbers

    wait_until(is_last, f"mark {last}", timeout_s=LIMIT_S, interval_s=0)
    return seen


def answer_appends(root: str, count: int) -> list[float]:
    """Append every even number once its predecessor is seen; returns how long each was waited for [s]."""
    own, clock, waited = SharedDirStore(root), SystemClock(), []
    for number in range(1, 2 * count, 2):
        began = clock.monotonic()
        _wait_record(own, number)
        waited.append(clock.monotonic() - began)
        assert own.append("journal", number + 1, b"answer")
    return waited


def ask_appends(root: str, count: int) -> list[float]:
    """Append every odd number and wait for the answer; returns the time of each round trip [s]."""
    own, clock, took = SharedDirStore(root), SystemClock(), []
    for number in range(1, 2 * count, 2):
        began = clock.monotonic()
        assert own.append("journal", number, b"question")
        _wait_record(own, number + 1)
        took.append(clock.monotonic() - began)
    return took


def _wait_record(own: SharedDirStore, number: int) -> None:
    wait_until(lambda: bool(own.read_after("journal", number - 1)), f"record {number}", timeout_s=LIMIT_S)


def hold_lock(root: str) -> None:
    """Hold the run's lock until this program is ended."""
    with ContentionLock(RunPaths(root).lock).held() as is_held:
        assert is_held
        open(os.path.join(root, "held"), "w").close()
        threading.Event().wait()


def commit(root: str, me: str, count: int) -> list[float]:
    """Commit many entries that all fit while others do the same; returns how long each took [s]."""
    paths, clock, took = RunPaths(root), SystemClock(), []
    log = RunLog(SharedDirStore(root), clock, me, ContentionLock(paths.lock, clock))
    for _ in range(count):
        began = clock.monotonic()
        log.commit(lambda state: EpochStarted(Epoch(state.last + 1, 0, 0, 0), me, ()))
        took.append(clock.monotonic() - began)
    return took


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        make_run, store, race, race_for_names, race_for_directories, put_values, torn_values, ask_appends,
        answer_appends, hold_lock, commit, beat, watch_beats,
    )
}  # fmt: skip


def main() -> None:
    """Answer requests until the input ends."""
    lock = threading.Lock()

    def answer(number: int, function: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            line = repr((number, None, FUNCTIONS[function](*args, **named)))
        except StoreError as error:
            line = repr((number, ("StoreError", str(error), error.errno), None))
        except BaseException as error:  # noqa: BLE001 - the test decides
            line = repr((number, (type(error).__name__, str(error), None), None))
        with lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        threading.Thread(target=answer, args=ast.literal_eval(line), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
