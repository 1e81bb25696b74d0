"""A function as the work of a run: how it gets to the workers, and its values back.

Both ways are files in the run directory, pickled by cloudpickle as submitit does it, so that functions
of a notebook work. Nothing is unpickled that another user could have written.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hpc_elastic.errors import HpcElasticError, InputError, RunDirError
from hpc_elastic.isolated.argv import CALL
from hpc_elastic.paths import RunPaths
from hpc_elastic.store import files
from hpc_elastic.store.files import make_directory
from hpc_elastic.store.plain_file import open_in_directory
from hpc_elastic.text import for_shell

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

MODULE = CALL  # the work of each worker
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def import_what_it_needs() -> None:
    """Import the module that unpickles calls, before modules are also looked for where the user wants it."""
    import pickle  # noqa: F401, PLC0415 - only for functions

    import cloudpickle  # noqa: F401, PLC0415 - the same
    import submitit.core.utils  # noqa: F401, PLC0415 - the same


def pickled(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return a call as bytes.

    Raises:
        InputError: the function does not take these arguments, or something cannot be pickled.
    """
    from submitit.core.utils import DelayedSubmission  # noqa: PLC0415 - only for functions

    fix = "give its arguments behind it; those with names by functools.partial"
    check_arguments(DelayedSubmission(function, *args), fix)
    return pickled_call(DelayedSubmission(function, *args))


def check_arguments(call: DelayedSubmission, fix: str) -> None:
    """Check that a function takes the arguments it is to be called with.

    Raises:
        InputError: it does not.
    """
    import inspect  # noqa: PLC0415 - only for functions

    if not callable(call.function):
        raise InputError(
            f"{call.function!r} cannot be called",
            where="submit",
            fix="give a function; programs and job files are for hpc_elastic.submit",
        )
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(call.function) for is_kind in kinds):
        raise InputError(
            f"{name_of(call.function)} is asynchronous or a generator: calling it runs nothing of it",
            where="submit",
            fix="give a function that runs it, as by asyncio.run or list, and returns the result",
        )
    try:
        signature = inspect.signature(call.function)
    except (TypeError, ValueError):  # unknown for a function in C
        return
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise InputError(
            f"{name_of(call.function)}{signature} cannot be called with the given arguments: {error}",
            where="submit",
            fix=fix,
        ) from error


def pickled_call(call: DelayedSubmission) -> bytes:
    """Return a call that submitit has put together as bytes.

    Its reader also finds the modules that are imported here from directories of the user's own.

    Raises:
        InputError: function or arguments cannot be pickled.
    """
    import pickle  # noqa: PLC0415 - only for functions

    import cloudpickle  # noqa: PLC0415 - the same

    try:
        data: bytes = cloudpickle.dumps(call)
    except Exception as error:  # a class that refuses to be pickled may raise anything
        raise InputError(
            f"{name_of(call.function)} or its arguments cannot be sent to the workers: {error}",
            where="submit",
            fix="open files, locks, sockets and CUDA tensors inside of the function",
        ) from error
    return pickle.dumps(_Sent(data))


class _Sent:
    """A call on its way to the workers: pickled, it is `_received`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (own_directories(sys.path), self._data)


def own_directories(path: Sequence[str]) -> list[str]:
    """Return the directories of a module search path that come neither with Python nor with packages."""
    installed = {os.path.realpath(place) for place in (sys.prefix, sys.exec_prefix, sys.base_prefix)}
    places = [os.path.abspath(place) for place in path]
    return [
        place
        for place in dict.fromkeys(places)
        if os.path.isdir(place)
        and os.path.basename(place) not in ("site-packages", "dist-packages", "lib-dynload")
        and not any(os.path.realpath(place).startswith(f"{prefix}/lib") for prefix in installed)
    ]


def _received(directories: list[str], data: bytes) -> Any:
    """Return the call that was sent, whose modules may lie in directories that only its sender searches.

    Raises:
        InputError: a module is not there.
    """
    import pickle  # noqa: PLC0415 - only for functions

    sys.path += [place for place in directories if place not in sys.path]
    try:
        return pickle.loads(data)  # noqa: S301 - part of the value that is being unpickled
    except ModuleNotFoundError as error:
        raise InputError(
            f"the function cannot be called here: {error}",
            where="submit",
            fix=f"install it for {sys.executable}, which the workers run, or give another `python`",
        ) from error


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, also one that was wrapped by `functools.partial`."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", None) or type(inner).__name__)


def load(paths: RunPaths) -> DelayedSubmission:
    """Return the call that the run directory holds.

    Raises:
        RunDirError: another user could have written it.
    """
    return load_call(paths.function)


def load_call(file: str) -> DelayedSubmission:
    """Return the call in a file of a run directory.

    Raises:
        RunDirError: it is not there, or another user could have written it.
    """
    call: DelayedSubmission = _load(file)
    return call


def save(paths: RunPaths, rank: int, value: Any) -> None:
    """Keep the value that a rank has returned; that of a later round replaces it.

    Raises:
        InputError: it cannot be pickled.
        MemoryError: there is no room for its bytes.
    """
    import cloudpickle  # noqa: PLC0415 - only for functions

    try:
        data = cloudpickle.dumps(value)
    except MemoryError:  # may be passed the next time
        raise
    except Exception as error:  # as above
        raise InputError(
            f"rank {rank} returned a {type(value).__name__} that cannot be pickled: {error}",
            where="the function's value",
            fix="return numbers, texts, lists, CPU tensors or arrays; save large things to files",
        ) from error
    make_directory(paths.results)
    files.replace(_result(paths, rank), data)


def results(paths: RunPaths, world_size: int) -> list[Any]:
    """Return the values of the ranks of the last round, by rank.

    Raises:
        RunDirError: a value is missing, or another user could have written it.
    """
    for rank in range(world_size):
        if not os.path.lexists(_result(paths, rank)):
            raise RunDirError(
                f"rank {rank} has left no value in {paths.results}",
                where="the function's value",
                fix="have the function return; one that ends its process (sys.exit, os._exit) does not",
            )
    return [_value(_result(paths, rank), rank) for rank in range(world_size)]


def _value(file: str, rank: int) -> Any:
    try:
        return _load(file)
    except HpcElasticError:
        raise
    except Exception as error:  # a class that refuses to be unpickled may raise anything
        raise InputError(
            f"the value that rank {rank} has returned cannot be unpickled here: "
            f"{type(error).__name__}: {error}",
            where=file,
            fix="use the workers' Python here; have the function return tensors of the CPU, not of a GPU",
        ) from error


def _result(paths: RunPaths, rank: int) -> str:
    return os.path.join(paths.results, f"{rank}.pkl")


def _load(path: str) -> Any:
    """Unpickle a file of this user's in a directory of this user's.

    Raises:
        RunDirError: it is not there, or not this user's alone.
    """
    import pickle  # noqa: PLC0415 - only for functions; see below

    try:
        handle, above = files.retry(lambda: open_in_directory(path))
    except OSError as error:
        raise RunDirError(
            f"{path} cannot be read: {error.strerror}", where="run directory", fix="was it moved away?"
        ) from error
    with open(handle, "rb") as file:
        for where, found in ((path, os.fstat(file.fileno())), (os.path.dirname(path), above)):
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
                raise RunDirError(
                    f"{where} can be written by others, so it is not unpickled",
                    where="run directory",
                    fix=f"if you trust it: chmod go-w {for_shell(where)}",
                )
        return pickle.load(file)  # noqa: S301 - this user's own, as has just been checked
