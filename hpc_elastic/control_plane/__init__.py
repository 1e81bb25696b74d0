"""Asking a worker while it runs: a small HTTP server of its own, on a socket that only its user can open.

The names and the answers are those of ``torch.distributed.elastic.control_plane``::

    from hpc_elastic.control_plane import worker_main

    @worker_main()
    def main(): ...

With TORCH_WORKER_SERVER_SOCKET set to a path, such as ``/tmp/me/worker-${rank}.sock``, a terminal on the
same node gets the stacks of all threads of a worker::

    curl --unix-socket /tmp/me/worker-3.sock -X POST http://worker/handler/dump_traceback
"""

from __future__ import annotations

import os
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

from hpc_elastic.control_plane.handlers import Request, Response, register_handler
from hpc_elastic.multiprocessing.errors.error_handler import record
from hpc_elastic.timer.stacks import print_stacks_when_asked

if TYPE_CHECKING:
    from hpc_elastic.control_plane.server import WorkerServer

__all__ = ["TORCH_WORKER_SERVER_SOCKET", "Request", "Response", "register_handler", "worker_main"]

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


class _WorkerMain(ContextDecorator):
    """A worker's main part: its error goes to the error file, and its server answers meanwhile."""

    def __init__(self) -> None:
        self._server: WorkerServer | None = None

    def _recreate_cm(self) -> _WorkerMain:
        return _WorkerMain()  # a decorated function may be called again

    def __enter__(self) -> None:
        print_stacks_when_asked()
        path = os.environ.get(TORCH_WORKER_SERVER_SOCKET)  # noqa: TID251 - as torch does
        if path:
            from hpc_elastic.control_plane.server import WorkerServer  # noqa: PLC0415 - only if it is wanted

            self._server = WorkerServer(path)
            self._server.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
        if error is not None:
            _record(error)


def _record(error: BaseException) -> None:
    """Write an error to the error file, as `record` does for a function that raises it."""
    trace = error.__traceback__
    try:
        record(_raise)(error)
    except BaseException as same:  # noqa: BLE001 - it continues in the thread that raised it
        same.__traceback__ = trace


def _raise(error: BaseException) -> None:
    raise error


def worker_main() -> _WorkerMain:
    """Wrap the main function of a worker, or a with-statement.

    It includes `record`. If TORCH_WORKER_SERVER_SOCKET is set, it starts a server on the unix socket of
    that path: ``POST /handler/<name>`` runs a handler, ``GET /handler/`` lists them. In the path ``${rank}``
    and ``${local_rank}`` are replaced, as each worker needs a socket of its own. Handlers here are
    ``ping``, ``dump_traceback`` and those of `register_handler`; once this process has imported
    ``torch.distributed``, those of torch as well.

    Besides, the signal ``RTMIN+8`` has this process print the stacks of all its threads to stderr,
    also while it hangs in a call that lets no Python code run.

    Raises:
        InputError: no socket can have that path.
        RuntimeError: another process answers there.
    """
    return _WorkerMain()
