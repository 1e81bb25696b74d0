"""The part of a worker process that runs a function: take its place, call it, hand the value back."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hpc_elastic.multiprocessing.errors.error_handler import describe, record
from hpc_elastic.named_tuple import NamedTuple

_RESET = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Descriptor:
    """A file descriptor that keeps its meaning on its way to the worker."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> Any:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415 - not when forked

        return DupFd(self.fd)

    def __setstate__(self, state: Any) -> None:
        self.fd = int(state.detach())


class Served(NamedTuple):
    """The part of a worker that a fork server has made: its parent could not do it before."""

    stdio: tuple[Descriptor, Descriptor, Descriptor]
    cwd: str
    cpus: tuple[int, ...] = ()
    ignore_signals: tuple[int, ...] = ()


class ReturnMeeting(NamedTuple):
    """Where workers wait until all of the group have returned, so that none exits before.

    Other processes may still use things of a worker at its exit, such as torch's store and connections.

    Args:
        returned: an eventfd; each worker adds 1.
        all_returned: an eventfd; the parent adds 1 when it waits for no worker any more.
    """

    returned: Descriptor
    all_returned: Descriptor

    def wait(self) -> None:
        """Tell that this worker has returned, and wait for the others."""
        os.eventfd_write(self.returned.fd, 1)
        poller = select.poll()
        poller.register(self.all_returned.fd, select.POLLIN)
        poller.poll()


class FunctionCall(NamedTuple):
    """A function to be called in a worker.

    Args:
        name: of the function, for messages.
        pickled: function and arguments; None in a forked worker, which has them.
        plain: function and arguments; None where they were pickled.
        env: the worker's whole environment.
        value: an empty file for the pickled return value.
        served: only in a worker that a fork server made.
        prepare: called first; only in a forked worker.
        meeting: where it waits for the others after its return; None for a worker alone.
        was_isolated: the worker has searched only the path of its parent, an isolated process; Python's
            own path is in ``plain`` of its main module.
    """

    name: str
    pickled: bytes | None
    plain: tuple[Callable[..., Any], tuple[Any, ...]] | None
    env: Mapping[str, str]
    value: Descriptor
    served: Served | None = None
    prepare: Callable[[], None] | None = None
    meeting: ReturnMeeting | None = None
    was_isolated: bool = False


def run(call: FunctionCall) -> None:
    """Be the worker: the target of its process object."""
    if call.served is not None:
        _take_place(call.served, call.env)
    if call.prepare is not None:
        call.prepare()
    _replace_environment(call.env)
    record(_call)(call)


def _call(call: FunctionCall) -> None:
    if call.was_isolated:
        sys.path[:] = vars(sys.modules["__main__"])["plain"]
    function, args = call.plain or pickle.loads(call.pickled or b"")  # noqa: S301 - from our parent
    value = record_free(function)(*args)
    try:
        with os.fdopen(call.value.fd, "wb") as file:
            pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TypeError(
            f"the return value of {call.name} (a {type(value).__name__}) cannot be handed to the parent "
            f"process: {describe(error)}; return a value that pickle can store, "
            "such as numbers, texts or arrays"
        ) from error
    if call.meeting is not None:
        call.meeting.wait()


def record_free(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that turns a clean exit into None, as `record` does."""

    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except SystemExit as error:
            if error.code in (0, None):
                return None
            raise

    return call


def _replace_environment(env: Mapping[str, str]) -> None:
    here = os.environ  # noqa: TID251 - this process is to have exactly this environment
    for name in here.keys() - env.keys():
        del here[name]
    for name, value in env.items():
        if here.get(name) != value:
            here[name] = value


def reset_death_signals(ignored: Collection[int]) -> None:
    """Have the signals that end a process do so again; the process around this one may have changed that.

    Args:
        ignored: those that are to be ignored instead.
    """
    for sig in _RESET:
        signal.signal(sig, signal.SIG_IGN if sig in ignored else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_place(served: Served, env: Mapping[str, str]) -> None:
    """Do the parent's part for other workers between fork and exec."""
    from hpc_elastic.processes.linux import die_with_parent  # noqa: PLC0415 - needs ctypes
    from hpc_elastic.processes.process import bear_mark, take_stdio  # noqa: PLC0415

    _let_the_server_end()
    os.setsid()
    if not die_with_parent(os.getppid()):
        os._exit(1)
    reset_death_signals(served.ignore_signals)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    take_stdio([descriptor.fd for descriptor in served.stdio])
    bear_mark(env)
    os.chdir(served.cwd)
    if served.cpus:
        os.sched_setaffinity(0, served.cpus)


def _let_the_server_end() -> None:
    """Give up the hold on the fork server: it ends with our parent, and its end is ours."""
    from multiprocessing import forkserver  # noqa: PLC0415 - loaded already

    server: Any = vars(forkserver)["_forkserver"]
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = None


def own_streams(*, out: bool, err: bool) -> None:
    """Have a forked worker print to its own descriptors where a log is behind them.

    In the parent ``sys.stdout`` may be something else, as in a notebook.

    Args:
        out: whether stdout goes to a log.
        err: whether stderr goes to a log.
    """
    for name, fd, is_wanted in (("stdout", 1, out), ("stderr", 2, err)):
        if is_wanted and not _is_descriptor(getattr(sys, name), fd):
            stream = open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _is_descriptor(stream: Any, fd: int) -> bool:
    try:
        return bool(stream.fileno() == fd)
    except (AttributeError, OSError, ValueError):
        return False
