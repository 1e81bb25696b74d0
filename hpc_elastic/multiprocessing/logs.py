"""The files for output and errors of the workers, and the log specs of other packages."""

from __future__ import annotations

import errno
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hpc_elastic.data_fields import DataClass, DataFields
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.store.files import make_directories

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLUGIN_GROUPS: Final = ("hpc_elastic.logs_specs", "torchrun.logs_specs")
"""Entry point groups, searched in this order."""

DEFAULT_PREFIX: Final = "[rank ${rank}] "
"""Template of what stands before each line of a worker on the agent's console."""

_RANK: Final = "RANK"
_RUN_ID: Final = "TORCHELASTIC_RUN_ID"
_RESTART_COUNT: Final = "TORCHELASTIC_RESTART_COUNT"


class LogDirError(InputError, NotADirectoryError):
    """The given log directory is none."""

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.errno = errno.ENOTDIR


class LogsDest(DataClass):
    """The files of each local rank.

    Args:
        stdouts: where stdout goes; an empty text leaves it on the console.
        stderrs: the same for stderr.
        tee_stdouts: files of `stdouts` that are also copied to the console.
        tee_stderrs: files of `stderrs` that are also copied to the console.
        error_files: where workers write the exception that ends them.
        filtered_stdout: where chosen lines of all teed stdouts go.
        filtered_stderr: where chosen lines of all teed stderrs go.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]] = DataFields(  # type: ignore[assignment]
        stdouts=dict,
        stderrs=dict,
        tee_stdouts=dict,
        tee_stderrs=dict,
        error_files=dict,
        filtered_stdout="",
        filtered_stderr="",
    )

    def __init__(  # noqa: PLR0913 - torch's fields
        self,
        stdouts: dict[int, str] | None = None,
        stderrs: dict[int, str] | None = None,
        tee_stdouts: dict[int, str] | None = None,
        tee_stderrs: dict[int, str] | None = None,
        error_files: dict[int, str] | None = None,
        filtered_stdout: str = "",
        filtered_stderr: str = "",
    ) -> None:
        self.stdouts = {} if stdouts is None else stdouts
        self.stderrs = {} if stderrs is None else stderrs
        self.tee_stdouts = {} if tee_stdouts is None else tee_stdouts
        self.tee_stderrs = {} if tee_stderrs is None else tee_stderrs
        self.error_files = {} if error_files is None else error_files
        self.filtered_stdout = filtered_stdout
        self.filtered_stderr = filtered_stderr


class LogsSpecs(ABC):
    """Decides where logs go; subclass it and fill `reify` and `root_log_dir`.

    Args:
        log_dir: where the log directories are made.
        redirects: which streams go to files.
        tee: which streams go to files *and* to the console.
        local_ranks_filter: whose output reaches the console; none given means all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | Mapping[int, Std] = Std.NONE,
        tee: Std | Mapping[int, Std] = Std.NONE,
        local_ranks_filter: Collection[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: Mapping[int, dict[str, str]]) -> LogsDest:
        """Make the directories for the workers with these environments and return the files."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory below which all logs are."""


class DefaultLogsSpecs(LogsSpecs):
    """``<log_dir>/<run>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}``; existing files stay.

    run is the run id (TORCHELASTIC_RUN_ID), where there is one; n is the round of the run
    (HPC_ELASTIC_ROUND), else the restart count; the rank is the global one when the worker's
    environment has it, else the local one. A second start in the same place renames the files of
    the first (``stdout.1.log``); within a round it appends to them. `os.devnull` as log_dir means
    no files at all, None a new temporary directory.

    Args:
        log_dir: see above.
        redirects: which streams go to files.
        tee: which streams go to files *and* to the console.
        local_ranks_filter: whose output reaches the console; none given means all.
        is_of_run: log_dir belongs to one run already: no directory named by the run.

    Raises:
        LogDirError: log_dir is a file.
        InputError: log_dir cannot be made.
    """

    is_chosen = True
    """Whether somebody wants it so; False where it only stands for something better."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | Mapping[int, Std] = Std.NONE,
        tee: Std | Mapping[int, Std] = Std.NONE,
        local_ranks_filter: Collection[int] | None = None,
        *,
        is_of_run: bool = False,
    ) -> None:
        if log_dir and log_dir != os.devnull and os.path.isfile(log_dir):
            raise LogDirError(f"{log_dir} is a file", where="log_dir", fix="give a directory, or none")
        if log_dir and log_dir != os.devnull and not is_of_run:  # a run's own is made, and checked, with it
            _make_folder(log_dir)
        super().__init__(log_dir or None, redirects, tee, local_ranks_filter)
        self._is_of_run = is_of_run

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def root_log_dir(self) -> str:
        """The directory below which all logs are; a temporary one is made when it is first asked for."""
        if self._root_log_dir is None:
            import tempfile  # noqa: PLC0415 - 3 ms that only this case pays

            self._root_log_dir = tempfile.mkdtemp(prefix="hpc_elastic_")
        return self._root_log_dir

    def reify(self, envs: Mapping[int, dict[str, str]]) -> LogsDest:
        """Make the directories for the workers with these environments and return the files.

        TORCHELASTIC_ERROR_FILE is put into each environment.

        Raises:
            InputError: a directory cannot be made.
        """
        if self._root_log_dir == os.devnull:
            null = dict.fromkeys(envs, os.devnull)
            return self._finished(envs, self._destinations(dict.fromkeys(envs, ""), null, null))
        attempt = self._attempt_folder(envs[min(envs)]) if envs else self.root_log_dir
        folders = {rank: os.path.join(attempt, env.get(_RANK) or str(rank)) for rank, env in envs.items()}
        for folder in folders.values():
            _make_folder(folder)
        errors = {rank: os.path.join(folder, "error.json") for rank, folder in folders.items()}
        stdouts = {rank: os.path.join(folder, "stdout.log") for rank, folder in folders.items()}
        stderrs = {rank: os.path.join(folder, "stderr.log") for rank, folder in folders.items()}
        found = self._destinations(errors, stdouts, stderrs)
        found.filtered_stdout = os.path.join(attempt, "filtered_stdout.log")
        found.filtered_stderr = os.path.join(attempt, "filtered_stderr.log")
        _set_aside_earlier(found, envs)
        return self._finished(envs, found)

    def remove_empty(self, found: LogsDest, ranks: Iterable[int]) -> None:
        """Remove the files in which nothing was written, of local ranks that have ended.

        Only in a directory of one run, whose readers do without them: thousands of workers would leave two
        empty files and a directory each, round by round.

        Args:
            found: the files of a group.
            ranks: whose files.
        """
        if not self._is_of_run or self._root_log_dir == os.devnull:
            return
        for rank in ranks:
            paths = [path for path in (found.stdouts.get(rank), found.stderrs.get(rank)) if path]
            for path in paths:
                with suppress(OSError):
                    if os.path.getsize(path) == 0:
                        os.unlink(path)
            with suppress(OSError):  # there is more in it
                os.rmdir(os.path.dirname(found.error_files[rank]))

    def _attempt_folder(self, env: Mapping[str, str]) -> str:
        run = "" if self._is_of_run else env.get(_RUN_ID, "").replace("/", "_")
        attempt = env.get(Env.ROUND) or env.get(_RESTART_COUNT) or "0"
        return os.path.join(self.root_log_dir, "_" if run in {".", ".."} else run, f"attempt_{attempt}")

    def _finished(self, envs: Mapping[int, dict[str, str]], found: LogsDest) -> LogsDest:
        for rank, path in found.error_files.items():
            envs[rank][Env.ERROR_FILE] = path
        return found

    def _destinations(
        self, errors: dict[int, str], stdouts: dict[int, str], stderrs: dict[int, str]
    ) -> LogsDest:
        """Choose among the candidate files: redirected, teed, or the console."""
        ranks = list(stdouts)
        redirects = {rank: _of_rank(self._redirects, rank) for rank in ranks}
        tee = {rank: _of_rank(self._tee, rank) for rank in ranks}
        shown = {rank: not self._local_ranks_filter or rank in self._local_ranks_filter for rank in ranks}

        def target(rank: int, stream: Std, path: str) -> str:
            if (redirects[rank] | tee[rank]) & stream:
                return path
            return "" if shown[rank] else os.devnull

        def teed(rank: int, stream: Std, path: str) -> bool:
            return bool(tee[rank] & stream) and shown[rank] and path != os.devnull

        return LogsDest(
            stdouts={rank: target(rank, Std.OUT, stdouts[rank]) for rank in ranks},
            stderrs={rank: target(rank, Std.ERR, stderrs[rank]) for rank in ranks},
            tee_stdouts={rank: stdouts[rank] for rank in ranks if teed(rank, Std.OUT, stdouts[rank])},
            tee_stderrs={rank: stderrs[rank] for rank in ranks if teed(rank, Std.ERR, stderrs[rank])},
            error_files=errors,
        )


def _set_aside_earlier(found: LogsDest, envs: Mapping[int, Mapping[str, str]]) -> None:
    """Rename the logs of an earlier start; the restarts of a round share its logs."""
    paths = list(found.error_files.values())
    if not any(Env.ROUND in env for env in envs.values()):
        paths += [*found.stdouts.values(), *found.stderrs.values()]
        paths += [found.filtered_stdout, found.filtered_stderr]
    for path in paths:
        if path and path != os.devnull:
            set_aside(path)


def _of_rank(val_or_map: Std | Mapping[int, Std], rank: int) -> Std:
    return val_or_map if isinstance(val_or_map, Std) else val_or_map.get(rank, Std.NONE)


_MAY_PASS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


def _make_folder(folder: str) -> None:
    """Make a directory for logs.

    Raises:
        InputError: it cannot be made there.
        OSError: it cannot be made now: the file system is full or in trouble.
    """
    try:
        make_directories(folder, 0o777)  # the umask decides the readers of logs
    except OSError as error:
        if error.errno in _MAY_PASS:  # another directory would be no better, and another start may be
            raise
        raise InputError(
            f"cannot make the directory {folder!r}: {error.strerror}",
            where="log_dir",
            fix="choose a directory that this node can write to",
        ) from error


def set_aside(path: str) -> None:
    """Rename a file that is in the way to ``<name>.<n><extension>`` with the first free n."""
    if not os.path.lexists(path):
        return
    stem, extension = os.path.splitext(path)
    number = 1
    while os.path.lexists(f"{stem}.{number}{extension}"):
        number += 1
    os.rename(path, f"{stem}.{number}{extension}")


def log_line_prefix(template: str, *, role_name: str, rank: int, local_rank: int, node: str) -> str:
    """Fill ``${role_name}``, ``${rank}``, ``${local_rank}``, ``${node}`` and ``${hostname}`` of a template.

    ``$rank`` and ``$$`` have the meaning of `string.Template`; other names stay.
    """
    values = {"role_name": role_name, "rank": str(rank), "local_rank": str(local_rank), "node": node}
    values["hostname"] = os.uname().nodename
    text = template
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    if "$" not in text:
        return text
    from string import Template  # noqa: PLC0415 - most agents start without

    return Template(template).safe_substitute(values)


def load_logs_specs(name: str) -> type[LogsSpecs]:
    """Return the class that a package offers by this name.

    Raises:
        ValueError: there is none, or the named object has no `reify`.
    """
    known = _entry_points()
    for point in known:
        if point.name == name:
            return _checked(point)
    names = ", ".join(sorted({point.name for point in known})) or "none"
    raise ValueError(
        f"Could not find entrypoint under 'torchrun.logs_specs[{name}]' key, nor under "
        f"'hpc_elastic.logs_specs'; installed packages offer: {names}"
    )


def make_logs_specs(
    name: str,
    log_dir: str | None,
    redirects: Std | Mapping[int, Std],
    tee: Std | Mapping[int, Std],
    local_ranks_filter: Collection[int] | None,
) -> LogsSpecs:
    """Return the log specs that a package offers by this name, made as torchrun makes them.

    A class that is derived from torch's gets torch's `Std`.

    Args:
        name: of the entry point.
        log_dir: see `LogsSpecs`, as all that follow.
        redirects: which streams go to files.
        tee: which streams go to files *and* to the console.
        local_ranks_filter: whose output reaches the console; None means all.

    Raises:
        ValueError: there is none, or the named object has no `reify` or cannot be made.
    """
    made = load_logs_specs(name)
    std = _std_of(made)
    try:
        return made(
            log_dir=log_dir,
            redirects=_as(std, redirects),
            tee=_as(std, tee),
            local_ranks_filter=local_ranks_filter,
        )
    except TypeError as error:
        raise ValueError(f"the log specs {name!r} cannot be made: {error}") from error


def _std_of(specs: type) -> type:
    """Return the `Std` of the package from which log specs are derived."""
    bases = [base.__module__ for base in specs.__mro__ if base.__name__ == LogsSpecs.__name__]
    found: type = next((std for name in bases if (std := getattr(sys.modules[name], "Std", None))), Std)
    return found


def _as(std: type, streams: Std | Mapping[int, Std]) -> Any:
    """Return streams in the values of another `Std`."""
    if isinstance(streams, Std):
        return std(int(streams))
    return {rank: std(int(one)) for rank, one in streams.items()}


def _checked(point: EntryPoint) -> type[LogsSpecs]:
    found: type[LogsSpecs] = point.load()
    if not callable(getattr(found, "reify", None)):
        raise ValueError(  # noqa: TRY004 - one error for a plugin that cannot be used
            f"the entry point {point.name!r} names {point.value!r}, which has no method reify"
        )
    return found


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 30 ms

    return [point for group in PLUGIN_GROUPS for point in entry_points(group=group)]
