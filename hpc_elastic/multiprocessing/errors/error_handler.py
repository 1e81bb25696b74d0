"""The error handler of a worker: it writes the exception that ends the worker to the error file."""

from __future__ import annotations

import faulthandler
import functools
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar, overload

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.errors.failure import ChildFailedError, encode_reply, read_reply, write_data
from hpc_elastic.multiprocessing.logs import set_aside

__all__ = ["ErrorHandler"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MAX_TRACEBACK: Final = 100_000


_log = logging.getLogger(__name__)


class ErrorHandler:
    """Writes the error file named by TORCHELASTIC_ERROR_FILE; without it only warns and prints.

    Subclass it to send failures elsewhere too. No method raises: the user's own exception must
    stay the one that is seen.
    """

    _fn_name = ""  # also of classes that do not call the methods below
    _clock: Clock = SystemClock()

    def __init__(self, clock: Clock | None = None) -> None:
        if clock is not None:
            self._clock = clock

    def initialize(self) -> None:
        """Have Python print the stacks of all threads when a fatal signal comes."""
        try:
            faulthandler.enable(all_threads=True)
        except Exception as error:  # noqa: BLE001 - stderr without a descriptor, for example
            self._warn(f"Unable to enable fault handler. {type(error).__name__}: {error}")

    def set_entrypoint_fn_name(self, fn_name: str) -> None:
        """Take note of the function that `record` runs, as on torch's main branch."""
        self._fn_name = fn_name

    def record_success(self) -> None:
        """Take note that the function has returned: nothing is written (as on the main branch of torch)."""
        if self._fn_name:
            _log.debug("%s has returned", self._fn_name)

    def record_exception(self, e: BaseException) -> None:
        """Write an exception to the error file."""
        if self._fn_name:
            _log.debug("%s has failed", self._fn_name)
        path = self._get_error_file_path()
        if path:
            text = "".join(traceback.format_exception(type(e), e, e.__traceback__))
            self._write(path, encode_reply(describe(e), middle_out(text, _MAX_TRACEBACK), self._clock.wall()))

    def maybe_enrich_signal_failure_message(
        self,
        message: str,
        error_file: str,  # noqa: ARG002 - for subclasses
    ) -> str:
        """Return the text about a worker that a signal has ended; here as it is (from torch 2.14).

        Args:
            message: the text without this method.
            error_file: the worker's; ``<N/A>`` if it has written none.
        """
        return message

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error file to this process's own; an earlier one is renamed, not lost.

        Args:
            rootcause_error_file: the child's file.
            error_code: put into the copy as ``errorCode`` unless 0.
        """
        path, reply = self._get_error_file_path(), read_reply(rootcause_error_file)
        if not path:
            self._warn(f"no error file defined for parent, to copy child error file ({rootcause_error_file})")
            return
        if reply is None or os.path.abspath(path) == os.path.abspath(rootcause_error_file):
            return
        data = dict(reply.data) or {"message": reply.message}
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        self._write(path, data)

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Put an exit code into the content of an error file, where that has a place for it.

        Args:
            rootcause_error_file: where the content is from.
            rootcause_error: the content; changed.
            error_code: facts that only the parent has, such as the signal that ended the child.
        """
        body = rootcause_error.get("message")
        if isinstance(body, dict):
            rootcause_error["message"] = {**body, "errorCode": error_code}
        elif body is None:
            self._warn(
                f"child error file ({rootcause_error_file}) does not have field `message`. "
                f"cannot override error code: {error_code}"
            )
        else:
            self._warn(
                f"child error file ({rootcause_error_file}) has a new message format. "
                "skipping error code override"
            )

    def _get_error_file_path(self) -> str:
        return os.environ.get(Env.ERROR_FILE, "")  # noqa: TID251 - how the agent tells a worker

    def _write(self, path: str, data: Mapping[str, Any]) -> None:
        try:
            set_aside(path)
            write_data(path, data)
        except Exception as error:  # noqa: BLE001 - a full disk, a vanished directory, odd data
            self._warn(f"cannot write the error file {path!r}: {error}")

    def _warn(self, text: str) -> None:
        try:
            sys.stderr.write(f"hpc_elastic: {text}\n")
        except (OSError, ValueError, AttributeError):
            pass


def get_error_handler() -> ErrorHandler:
    """Return the handler that `record` uses."""
    return ErrorHandler()


def describe(error: BaseException) -> str:
    """Return ``<type>: <text>`` of an exception, even if its ``__str__`` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as broken:  # noqa: BLE001
        return f"{type(error).__name__}: (its text cannot be shown: {type(broken).__name__})"


def middle_out(text: str, limit: int) -> str:
    """Return a text of at most about `limit` characters: the beginning and, mostly, the end."""
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]}\n... {len(text) - limit} characters left out ...\n{text[head - limit :]}"


@overload
def record(fn: Callable[_P, _R], error_handler: ErrorHandler | None = None) -> Callable[_P, _R | None]: ...


@overload
def record(
    fn: None = None, error_handler: ErrorHandler | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]: ...


def record(
    fn: Callable[_P, _R] | None = None, error_handler: ErrorHandler | None = None
) -> Callable[_P, _R | None] | Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Decorate a script's main function: the exception that ends it goes to the error file.

    Works with and without brackets, under an agent and as plain ``python script.py``.
    ``sys.exit(0)`` returns None, as torch's does; ``sys.exit()`` ends the process well, any other exit is
    recorded and goes on.
    """
    if fn is None:
        return functools.partial(_decorate, error_handler=error_handler)
    return _decorate(fn, error_handler)


def _tell(handler: ErrorHandler, method: str, *args: str) -> None:
    """Call a method that handlers written for an earlier torch lack."""
    tell = getattr(handler, method, None)
    if tell is not None:
        tell(*args)


def _tell_success(handler: ErrorHandler) -> None:
    """Tell a handler that the function has returned; one that fails at that does not make it a failure."""
    try:
        _tell(handler, "record_success")
    except Exception as error:  # noqa: BLE001 - the code of a user, after the work is done
        _log.warning(
            "record_success of %s failed: %s: %s", type(handler).__name__, type(error).__name__, error
        )


def _decorate(fn: Callable[_P, _R], error_handler: ErrorHandler | None) -> Callable[_P, _R | None]:
    @functools.wraps(fn)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        handler = error_handler or get_error_handler()
        _tell(handler, "set_entrypoint_fn_name", getattr(fn, "__qualname__", ""))
        handler.initialize()
        try:
            found = fn(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
                _tell_success(handler)
                return None
            if error.code is not None:
                handler.record_exception(error)
            raise
        except ChildFailedError as error:
            failure = error.get_first_failure()[1]
            if os.path.isfile(failure.error_file):
                handler.dump_error_file(failure.error_file, failure.exitcode)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise
        _tell_success(handler)
        return found

    return wrapper
