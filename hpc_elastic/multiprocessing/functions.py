"""A group of workers that run a function (names as in torch.distributed.elastic)."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_elastic.isolated.callers_path import has_own_path
from hpc_elastic.multiprocessing.errors.error_handler import describe
from hpc_elastic.multiprocessing.errors.failure import encode_reply, write_data
from hpc_elastic.multiprocessing.function_start import STARTERS, FunctionJob, new_file, start_spawned
from hpc_elastic.multiprocessing.function_worker import reset_death_signals
from hpc_elastic.multiprocessing.group import ProcessGroup
from hpc_elastic.multiprocessing.logs import LogsSpecs
from hpc_elastic.multiprocessing.pcontext import Entrypoint, RunProcsResult, StartSettings
from hpc_elastic.processes.process import ChildProcess


class MultiprocessContext(ProcessGroup):
    """A group of workers that run a function; their return values are in the result.

    A value comes back through a file in memory, so its size neither blocks the worker nor needs
    anybody to read along.

    Args:
        name: of the group.
        entrypoint: the function.
        args: its arguments by local rank.
        envs: environment by local rank.
        start_method: ``spawn``, ``fork`` or ``forkserver``.
        logs_specs: where logs go.
        log_line_prefixes: the prefix of each teed line, by local rank.
        numa_options: binds each worker to the CPUs near its GPU.
        duplicate_stdout_filters: see `PContext`.
        duplicate_stderr_filters: see `PContext`.
        settings: see `StartSettings`.

    Raises:
        ValueError: there is no such start method.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        name: str,
        entrypoint: Entrypoint,
        args: Mapping[int, Sequence[Any]],
        envs: Mapping[int, Mapping[str, Any]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        settings: StartSettings | None = None,
    ) -> None:
        if start_method not in STARTERS:
            raise ValueError(f"cannot find context for {start_method!r}; choose one of {', '.join(STARTERS)}")
        super().__init__(
            *(name, entrypoint, args, envs, logs_specs, log_line_prefixes, numa_options),
            *(duplicate_stdout_filters, duplicate_stderr_filters),
            settings=settings,
        )
        # A copy of this process would search the same places, and start isolated processes if it is isolated.
        self.start_method = "spawn" if has_own_path() else start_method
        self._files: dict[int, int] = {}
        self._return_values: dict[int, Any] = {}
        self._meeting: tuple[int, int] | None = None  # where workers wait for each other; see `Meeting`
        self._returned = 0

    @property
    def _are_children(self) -> bool:
        return self.start_method != "forkserver"

    def exit_fds(self) -> list[int]:
        """Return descriptors that become readable when something ends or returns; see `ProcessGroup`."""
        waits = self._meeting is not None and not self._stopper.is_begun
        own = [self._meeting[0]] if waits and self._meeting and self._returned < self.nprocs else []
        return super().exit_fds() + own

    def look(self) -> RunProcsResult | None:
        """Return all failures so far, or the end of all; see `ProcessGroup`."""
        self._let_go()
        return super().look()

    def _let_go(self) -> None:
        """Let the workers that have returned exit, once none is left that could still return."""
        if self._meeting is None or self._returned >= self.nprocs:
            return
        try:
            self._returned += os.eventfd_read(self._meeting[0])
        except BlockingIOError:
            pass
        if self._returned + len(self.exit_codes()) >= self.nprocs:
            self._returned = self.nprocs
            os.eventfd_write(self._meeting[1], 1)

    def _spawn(self, rank: int) -> ChildProcess:
        if self._meeting is None and self.nprocs > 1:
            self._meeting = (_event(), _event())
        if not callable(self.entrypoint):
            raise TypeError(f"the entrypoint {self.entrypoint!r} is no function")
        self._files[rank] = new_file()
        job = FunctionJob(
            name=f"{self.name}{rank}",
            function=self.entrypoint,
            args=self.args[rank],
            value=self._files[rank],
            spec=self._spec(rank, (), self._marker),
            prepare=self._prepare,
            meeting=self._meeting,
        )
        if self.start_method == "spawn":
            return start_spawned(job, self._settings.preloader)
        return STARTERS[self.start_method](job)

    def _prepare(self) -> None:
        """Rid a forked worker of the handlers for signals that its parent's were meant for."""
        if not self._settings.is_driven:
            self._trap.restore()
            return
        reset_death_signals(self._settings.ignore_signals)

    def _take_value(self, rank: int) -> bool:
        """Unpickle a worker's return value; a value that cannot be read is its failure."""
        fd = self._files.pop(rank)
        os.lseek(fd, 0, os.SEEK_SET)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size == 0:  # it left by os._exit(0)
                self._return_values[rank] = None
                return True
            try:
                self._return_values[rank] = pickle.load(file)  # noqa: S301 - from our own child
            except Exception as error:  # noqa: BLE001 - anything may happen in a foreign class
                self._tell(rank, error)
                return False
        return True

    def _tell(self, rank: int, error: Exception) -> None:
        text = f"the return value cannot be read in the parent process: {describe(error)}"
        path = self.logs.error_files.get(rank)
        if path:
            write_data(path, encode_reply(f"TypeError: {text}", "", self._clock.wall()))

    def _values(self) -> dict[int, Any]:
        return dict(sorted(self._return_values.items()))

    def _give_back(self) -> None:
        super()._give_back()
        while self._files:
            os.close(self._files.popitem()[1])
        meeting, self._meeting = self._meeting, None
        for fd in meeting or ():
            os.close(fd)


def _event() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
