"""The Python stacks of workers, written down without their help and before anybody ends them.

A worker that has called `hpc_elastic.worker` writes them itself, in a handler in C: it does not
matter where it is stuck. For any other process py-spy does it, where that is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.workers.process_facts import catches
from hpc_elastic.store.plain_file import open_plain

if TYPE_CHECKING:
    from hpc_elastic.processes.process import ChildProcess
    from hpc_elastic.worker.channel import Channel

_PY_SPY = "py-spy"
_SETTLED_S = 0.2  # a file that has not grown for so long is complete
_MOST_BYTES = 1 << 20
_NONE = (
    "no Python stacks: this process has not called hpc_elastic.worker (call worker.tick(step) after each"
    " step),\nand py-spy is not installed in the agent's environment (pip install py-spy)"
)
_BLOCKED = "no Python stacks: all threads of this process block signals"


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
