"""Where the output and the error files of the workers go."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.std import Std

DEFAULT_PREFIX: Final = "[rank ${rank}] "
"""Template of what stands before each line of a worker on the agent's console."""

_RANK: Final = "RANK"
_RESTART_COUNT: Final = "TORCHELASTIC_RESTART_COUNT"


class LogsDest(NamedTuple):
    """The files of each local rank; an empty string means that the stream is not redirected."""

    stdouts: dict[int, str]
    stderrs: dict[int, str]
    tee_stdouts: dict[int, str]
    tee_stderrs: dict[int, str]
    error_files: dict[int, str]


class LogsSpecs(ABC):
    """Decides where logs go; subclass it and fill `reify` and `root_log_dir`.

    Args:
        log_dir: where the log directories are made.
        redirects: which streams go to files.
        tee: which streams go to files *and* to the console.
        local_ranks_filter: whose output reaches the console; None means all.
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
    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Make the directories for the workers with these environments and return the files."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory below which all logs are."""


class DefaultLogsSpecs(LogsSpecs):
    """``<log_dir>/attempt_<n>/<rank>/{stdout.log,stderr.log,error.json}``; nothing is ever deleted.

    n is the round of the run (HPC_ELASTIC_ROUND), else the restart count; the rank is the global
    one when the worker's environment has it, else the local one. `os.devnull` as log_dir means no
    files at all, None a new temporary directory.
    """

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Make the directories for the workers with these environments and return the files.

        Raises:
            InputError: a directory cannot be made.
        """
        if self._root_log_dir == os.devnull:
            null = dict.fromkeys(envs, os.devnull)
            return self._destinations(dict.fromkeys(envs, ""), null, null)
        folders = {local_rank: self._folder(local_rank, env) for local_rank, env in envs.items()}
        for folder in folders.values():
            _make_folder(folder)
        errors = {rank: os.path.join(folder, "error.json") for rank, folder in folders.items()}
        for path in errors.values():
            set_aside(path)
        stdouts = {rank: os.path.join(folder, "stdout.log") for rank, folder in folders.items()}
        stderrs = {rank: os.path.join(folder, "stderr.log") for rank, folder in folders.items()}
        return self._destinations(errors, stdouts, stderrs)

    @property
    def root_log_dir(self) -> str:
        """The directory below which all logs are.

        Raises:
            InputError: none was given and none has been made yet.
        """
        if self._root_log_dir is None:
            raise InputError("the log directory is made at start; none was given", where="log_dir")
        return self._root_log_dir

    def _folder(self, local_rank: int, env: Mapping[str, str]) -> str:
        if self._root_log_dir is None:
            import tempfile  # noqa: PLC0415 - 3 ms that only this case pays

            self._root_log_dir = tempfile.mkdtemp(prefix="hpc_elastic_")
        attempt = env.get(Env.ROUND) or env.get(_RESTART_COUNT) or "0"
        return os.path.join(self._root_log_dir, f"attempt_{attempt}", env.get(_RANK) or str(local_rank))

    def _destinations(
        self, errors: dict[int, str], stdouts: dict[int, str], stderrs: dict[int, str]
    ) -> LogsDest:
        """Choose among the candidate files: redirected, teed, or the console."""
        ranks = list(stdouts)
        redirects = {rank: _of_rank(self._redirects, rank) for rank in ranks}
        tee = {rank: _of_rank(self._tee, rank) for rank in ranks}
        shown = {rank: self._local_ranks_filter is None or rank in self._local_ranks_filter for rank in ranks}

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


def _of_rank(val_or_map: Std | Mapping[int, Std], rank: int) -> Std:
    return val_or_map if isinstance(val_or_map, Std) else val_or_map.get(rank, Std.NONE)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
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
    """Fill ``${role_name}``, ``${rank}``, ``${local_rank}`` and ``${node}`` of a prefix template."""
    values = {"role_name": role_name, "rank": rank, "local_rank": local_rank, "node": node}
    for name, value in values.items():
        template = template.replace(f"${{{name}}}", str(value))
    return template
