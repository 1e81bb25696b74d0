"""Turns a forked copy of the preloading process into the worker that Python would have started.

Runs in the workers' interpreter: standard library alone, and nothing is imported late.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import fcntl
import importlib
import io
import os
import runpy
import signal
import sys
import threading
import types
import zipimport
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any, Final, NoReturn, cast

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import die_with_parent, set_shown_command
from hpc_elastic.processes.preload import changes, randomness
from hpc_elastic.processes.preload.rules import PythonCommand
from hpc_elastic.processes.process import bear_mark, close_other_fds, reset_signals, take_stdio

_NOT_STARTED: Final = 127
_CANNOT_OPEN: Final = 2


class WarmStart(NamedTuple):
    """The description of a worker.

    Args:
        command: its command line.
        env: its whole environment.
        cwd: its working directory.
        ignore_signals: those that start ignored.
        cpus: those that it may use, none given means all.
        agent: pid of its parent.
        printed: the output of the imports on stdout and stderr.
        streams: the settings that imports have given to stdin, stdout and stderr, in order.
        generators: those of ``random`` that imports have made without a seed.
        all_at_once: the streams are not buffered (-u, or PYTHONUNBUFFERED).
        own_env: its environment without the changes that imports have made.
    """

    command: PythonCommand
    env: Mapping[str, str]
    cwd: str
    ignore_signals: tuple[int, ...]
    cpus: tuple[int, ...]
    agent: int
    printed: tuple[bytes, bytes] = (b"", b"")
    streams: Mapping[int, Sequence[Mapping[str, Any]]] = {}
    generators: Sequence[Any] = ()
    all_at_once: bool = False
    own_env: Mapping[str, str] = {}


class Fds(NamedTuple):
    """The descriptors that one worker gets.

    Args:
        stdio: stdin, stdout and stderr.
        starting: a pipe that is closed when the program runs, or tells why it cannot.
        go: a pipe whose byte says that the agent knows of the worker.
        verdict: a pipe that tells whether the files of the imported modules are unchanged.
        passed: further descriptors, by the numbers that they are to have.
    """

    stdio: tuple[int, int, int]
    starting: int
    go: int
    verdict: int
    passed: Mapping[int, int]


def become(start: WarmStart, fds: Fds) -> None:
    """Do the steps of other workers between fork and exec; exits if one of them fails."""
    step = "exec"
    try:
        os.setsid()
        if not os.read(fds.go, 1) or not die_with_parent(start.agent):
            os._exit(_NOT_STARTED)
        take_stdio(list(fds.stdio))
        bear_mark(start.env)
        step = "cwd"
        os.chdir(start.cwd)
        step = "exec"
        if start.cpus:
            os.sched_setaffinity(0, start.cpus)
        reset_signals(start.ignore_signals)  # it can be ended while it waits
        if not changes.is_unchanged(fds.verdict):
            _start_anew(start, fds)
        _reset(start)
        for fd, data in enumerate(start.printed, 1):
            os.write(fd, data)
    except OSError as error:
        os.write(fds.starting, f"{step} {error.errno or errno.EINVAL}".encode())
        os._exit(_NOT_STARTED)
    except BaseException as error:  # noqa: BLE001 - a forked child must never return
        os.write(2, f"hpc_elastic: the worker cannot be started: {error!r}\n".encode())
        os.write(fds.starting, f"exec {errno.EINVAL}".encode())
        os._exit(_NOT_STARTED)
    for fd in (fds.go, fds.starting, fds.verdict):
        os.close(fd)


def _start_anew(start: WarmStart, fds: Fds) -> NoReturn:
    """Become the process that Python starts: a module's file has changed, and this is a copy of the old one.

    Raises:
        OSError: the interpreter cannot be run.
    """
    free = max((*fds.passed, *fds.passed.values(), fds.starting)) + 1
    starting = fcntl.fcntl(fds.starting, fcntl.F_DUPFD_CLOEXEC, free)
    close_other_fds({starting, *fds.passed.values()})
    place(fds.passed)
    words = start.command.words
    try:
        os.execvpe(words[0], words, dict(start.own_env))  # noqa: S606 - no shell on purpose
    except OSError as error:
        os.write(starting, f"exec {error.errno or errno.EINVAL}".encode())
        os._exit(_NOT_STARTED)


def place(passed: Mapping[int, int]) -> None:
    """Give descriptors the numbers that they have in the agent, as a started worker inherits them.

    Args:
        passed: the descriptors by those numbers, which are free but for themselves.
    """
    free = max((*passed, *passed.values()), default=0) + 1
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, free) for number, fd in passed.items()}
    for fd in passed.values():
        os.close(fd)
    for number, fd in moved.items():
        os.dup2(fd, number)
        os.close(fd)


def _reset(start: WarmStart) -> None:
    """Leave nothing that a new process would not have."""
    _set_environment(start.env)
    set_shown_command(
        [os.fsencode(word) for word in start.command.words],
        [os.fsencode(f"{name}={value}") for name, value in start.env.items()],
    )
    for stream, fd in ((sys.__stdin__, 0), (sys.__stdout__, 1), (sys.__stderr__, 2)):
        if stream is not None:
            _reopen(stream, fd, all_at_once=start.all_at_once)
            for settings in start.streams.get(fd, ()):
                stream.reconfigure(**settings)
    randomness.reseed(start.generators)
    importlib.invalidate_caches()
    reset_signals(start.ignore_signals)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does at its start
        signal.signal(ignored, signal.SIG_IGN)
    if signal.SIGINT not in start.ignore_signals:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _set_environment(env: Mapping[str, str]) -> None:
    here = os.environ
    for name in here.keys() - env.keys():
        del here[name]
    for name, value in env.items():
        if here.get(name) != value:
            here[name] = value


def _reopen(stream: io.TextIOWrapper, fd: int, *, all_at_once: bool) -> None:
    """Make a standard stream anew, as Python does at its start; a reference to the old one holds this one."""
    is_unbuffered = bool(fd) and all_at_once
    buffer = open(fd, "wb" if fd else "rb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    cast("Any", getattr(buffer, "raw", buffer)).name = ("<stdin>", "<stdout>", "<stderr>")[fd]
    by_lines = bool(fd) and not is_unbuffered and (fd == 2 or buffer.isatty())  # noqa: PLR2004
    encoding, errors = stream.encoding, stream.errors
    cast("Any", stream).__init__(
        buffer, encoding, errors, newline="\n", line_buffering=by_lines, write_through=all_at_once
    )


def run(command: PythonCommand) -> None:
    """Run the program of a command as Python does; returns or raises SystemExit at its end."""
    sys.orig_argv[:] = command.words
    main = prepare_main(command)
    try:
        if command.kind == "-m":
            cast("Any", runpy)._run_module_as_main(command.program, True)  # noqa: FBT003 - Python's own way
        elif command.kind == "-c":
            exec(compile(command.program, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102
        elif is_container(command.program):
            cast("Any", runpy)._run_module_as_main("__main__", False)  # noqa: FBT003
        else:
            exec(_code_of(command.program), main.__dict__)  # noqa: S102 - the user's script
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it
        _end_of(error)


def prepare_main(command: PythonCommand) -> types.ModuleType:
    """Make the module ``__main__``, ``sys.argv`` and the first place of the search path of a command."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    first = {"-m": "-m", "-c": "-c"}.get(command.kind, command.program)
    sys.argv[:] = [first, *command.args]
    if not command.kind and not is_container(command.program):
        path = _absolute(command.program)
        main.__file__ = path
        main.__loader__ = SourceFileLoader("__main__", path)
        if sys.version_info < (3, 15):
            main.__dict__["__cached__"] = None
    else:
        main.__loader__ = importlib.machinery.BuiltinImporter
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main


def first_place(command: PythonCommand) -> str:
    """Return the place that Python puts first into the search path of a command."""
    if command.kind == "-m":
        return os.getcwd()
    if command.kind == "-c":
        return ""
    if is_container(command.program):
        return _absolute(command.program)
    return os.path.dirname(os.path.realpath(command.program))


def is_container(path: str) -> bool:
    """Tell whether a script is a directory or an archive with a ``__main__`` in it."""
    if os.path.isdir(path):
        return True
    try:
        zipimport.zipimporter(path)
    except ImportError:
        return False
    return True


def _absolute(path: str) -> str:
    return os.path.join(os.getcwd(), path)


def _code_of(script: str) -> types.CodeType:
    path = _absolute(script)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        text = f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n"
        sys.stderr.write(text)
        raise SystemExit(_CANNOT_OPEN) from None
    return compile(source, path, "exec", dont_inherit=True)


def _end_of(error: BaseException) -> NoReturn:
    """End as Python does after an exception that is not caught; its trace begins in the program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:  # noqa: BLE001 - a hook of the program's
        sys.__excepthook__(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        cast("Any", threading)._shutdown()
        cast("Any", atexit)._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(1)
