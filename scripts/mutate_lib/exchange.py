"""A plugin of pytest: puts faults into functions that are loaded already, and runs tests on each fault.

Each fault is judged in a process of its own, which is forked once pytest has found the tests.
A copy of this file stands in the environment of the tree under test, as ``mutate_exchange``.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, NoReturn

import pytest

if __name__ == "mutate_exchange":
    import mutate_codes as codes  # type: ignore[import-not-found,unused-ignore]
else:
    from mutate_lib import codes

KILLED = "killed"
_PASSED, _FAILED, _HANGS, _LOST = "passed", "failed", "hangs", "lost"
_HANGS_S = 10.0  # how much longer than expected a test may take
_SLOWER = 5.0  # by how much a test may take longer than when its lines were noted
_QUICK_S = 0.3  # a test that takes no longer does not fail for the load of the machine
_Exchanges = list[tuple[FunctionType, CodeType]]
_ran: dict[int, CodeType] = {}  # what has run before the first test


class _End(NamedTuple):
    """How the tests on a fault have ended, and with which one."""

    how: str
    test: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options with which mutate starts pytest."""
    parser.addoption("--mutate-faults", help="a file with the faults of one module, as JSON")
    parser.addoption("--mutate-fates", help="a file for what becomes of them, a line of JSON each")


def pytest_configure(config: pytest.Config) -> None:
    """Judge the faults in place of running the tests once."""
    faults = json.loads(Path(config.getoption("mutate_faults")).read_text(encoding="utf-8"))
    config.pluginmanager.register(_Judge(faults, Path(config.getoption("mutate_fates"))))


class _Judge:
    """Judges the faults of one module.

    Args:
        faults: ``file`` and ``faults``, each of these with its ``source`` and its ``tests``; ``took_s`` has
            the time of each test.
        fates: file for what becomes of them.
    """

    def __init__(self, faults: dict[str, Any], fates: Path) -> None:
        self._faults = faults
        self._fates = fates
        self._items: dict[str, pytest.Item] = {}
        self._live: dict[CodeType, list[FunctionType]] = {}
        self._has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test has failed."""
        self._has_failed = self._has_failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Write what becomes of each fault, at once."""
        sys.settrace(None)
        if session.testsfailed:
            return None  # pytest says what it cannot import
        path = session.config.rootpath / self._faults["file"]
        before = compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
        self._items = {item.nodeid: item for item in session.items}
        self._live = _functions_of(str(path))
        gc.freeze()  # a fork copies no page only for the collector's marks
        with self._fates.open("w", encoding="utf-8", buffering=1) as file:
            for fault in self._faults["faults"]:
                after = compile(fault["source"], str(path), "exec", dont_inherit=True)
                file.write(
                    json.dumps(self._fate(_exchanges(before, after, self._live), fault["tests"])) + "\n"
                )
        return True

    def _fate(self, exchanges: _Exchanges | None, names: list[str]) -> tuple[str, str]:
        """Return what becomes of a fault: killed, or nothing certain, and why.

        A test counts only if it passes without the fault, after the same tests as with it. One that takes
        longer, or does not end, counts only if it does so twice.
        """
        if exchanges is None:
            return "not exchanged", ""
        end = self._run(exchanges, names)
        if end.how not in {_FAILED, _HANGS}:
            return end
        if self._run([], names[: names.index(end.test) + 1]).how != _PASSED:
            return "doubtful", end.test
        is_quick = end.how == _FAILED and self._faults["took_s"][end.test] <= _QUICK_S
        if not is_quick and self._run(exchanges, [end.test]).how not in {_FAILED, _HANGS}:
            return "doubtful", end.test
        return KILLED, end.test if end.how == _FAILED else f"{end.test} does not end"

    def _run(self, exchanges: _Exchanges, names: Sequence[str]) -> _End:
        """Run tests up to the first that fails, in a process of their own."""
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._be_child(exchanges, names, writes)
        os.close(writes)
        try:
            return self._end_of(reads)
        finally:
            os.close(reads)
            _kill(pid)

    def _be_child(self, exchanges: _Exchanges, names: Sequence[str], writes: int) -> NoReturn:
        """Say on a pipe which test begins, and at last how they have ended."""
        try:
            os.setsid()
            for function, code in exchanges:
                function.__code__ = code
            items = [self._items[name] for name in names]
            for item, following in zip(items, [*items[1:], None], strict=True):
                os.write(writes, f"{item.nodeid}\n".encode())
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._has_failed:
                    break
            os.write(writes, f"{_FAILED if self._has_failed else _PASSED}\n".encode())
        finally:
            os._exit(0)

    def _end_of(self, reads: int) -> _End:
        poll = select.poll()
        poll.register(reads, select.POLLIN)
        text, test = b"", ""
        while poll.poll(1000 * (_HANGS_S + _SLOWER * self._faults["took_s"].get(test, 0.0))):
            piece = os.read(reads, 1 << 16)
            text += piece
            lines = text.decode().split("\n")[:-1]
            if lines and lines[-1] in {_FAILED, _PASSED}:
                return _End(lines[-1], lines[-2])
            if not piece:
                return _End(_LOST, test)  # a fault can end a process, too
            test = lines[-1] if lines else ""
        return _End(_HANGS if test else _LOST, test)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has not become the leader of a group yet, or is gone with it
    os.waitpid(pid, 0)


def _functions_of(path: str) -> dict[CodeType, list[FunctionType]]:
    found: dict[CodeType, list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == path:
            found.setdefault(one.__code__, []).append(one)
    return found


def _exchanges(
    before: CodeType, after: CodeType, live: dict[CodeType, list[FunctionType]]
) -> _Exchanges | None:
    """Return which functions get which code; None if the fault would not be everywhere then."""
    ran = {code for code in _ran.values() if code.co_filename == before.co_filename}
    found: _Exchanges = []
    try:
        for one in codes.changed(before, after):
            functions = live.get(one.before, [])
            if (one.is_itself and one.before in ran) or not (functions or one.is_inner):
                return None
            for function in functions:
                if one.after is None or one.after.co_freevars != function.__code__.co_freevars:
                    return None
                found.append((function, one.after))
    except codes.AtImportError:
        return None
    return found or None


def _note(frame: FrameType, _event: str, _arg: Any) -> None:
    _ran[id(frame.f_code)] = frame.f_code


if __name__ == "mutate_exchange":
    sys.settrace(_note)
