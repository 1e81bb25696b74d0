"""One program in a process of its own, which ends with this one."""

from __future__ import annotations

import os
import select
import signal
import subprocess  # noqa: TID251 - only its exception, which callers of `wait` expect
from collections.abc import Mapping, Sequence

from hpc_elastic.processes.process import ChildProcess, ProcessSpec, WorkerStartError, spawn

__all__ = ["Program", "StartedProgram", "SubprocessHandler"]


class Program:
    """The common part of `subprocess.Popen`, on one of the package's own processes; it is not reaped here."""

    def __init__(self, process: ChildProcess) -> None:
        self.args = list(process.spec.argv)
        self.pid = process.pid
        self._process = process

    @property
    def returncode(self) -> int | None:
        """The exit code that was last seen, -n for signal n; None while it runs."""
        return self._process.exit_code

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended.

        Args:
            timeout: longest wait [s]; None means for ever.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        pidfd = self._process.pidfd
        if self.poll() is None and pidfd is not None:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._ended()

    def _ended(self) -> int:
        return self._process.poll() or 0

    def send_signal(self, sig: int) -> None:
        """Signal the program and the rest of its process group."""
        self._process.signal_group(sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class StartedProgram(Program):
    """A program that is started here, and reaped when it is seen to have ended.

    Raises:
        WorkerStartError: it cannot be run.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        super().__init__(spawn(spec))
        try:
            self._process.confirm_started(1.0)
        except WorkerStartError:
            self._process.reap()
            raise

    def poll(self) -> int | None:
        """Return the exit code, None while it runs; an ended process is reaped."""
        code = super().poll()
        if code is not None:
            self._process.reap()
        return code

    def _ended(self) -> int:
        self._process.reap()
        return self._process.exit_code or 0


class SubprocessHandler:
    """Starts a program in its own session, appending its output to files.

    Args:
        entrypoint: the program.
        args: its arguments; become texts.
        env: added to this process's environment.
        stdout: file for its stdout; none leaves it where this process's goes.
        stderr: the same for stderr.
        local_rank_id: its local rank.
        numa_options: binds it to the CPUs near its GPU.

    Raises:
        WorkerStartError: it cannot be run.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        entrypoint: str,
        args: Sequence[object],
        env: Mapping[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: object = None,
    ) -> None:
        from hpc_elastic.processes.numa import cpus_of  # noqa: PLC0415 - rare

        self.local_rank_id = local_rank_id
        self.proc: Program = StartedProgram(
            ProcessSpec(
                argv=(entrypoint, *(str(arg) for arg in args)),
                env={**os.environ, **env},  # noqa: TID251 - programs inherit
                stdout=stdout or None,
                stderr=stderr or None,
                cpus=cpus_of(local_rank_id, numa_options),
            )
        )

    @classmethod
    def of(cls, process: ChildProcess, local_rank_id: int) -> SubprocessHandler:
        """Return a handler of a process that other code has started, and reaps."""
        made = cls.__new__(cls)
        made.local_rank_id = local_rank_id
        made.proc = Program(process)
        return made

    def close(self, death_sig: int | None = None) -> None:
        """Signal the program and its process group; SIGTERM if nothing else is said."""
        self.proc.send_signal(death_sig or signal.SIGTERM)
