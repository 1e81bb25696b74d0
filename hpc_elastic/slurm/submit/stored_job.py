"""What `submit` has stored of a job, read again to queue it once more; each fault names its file."""

from __future__ import annotations

import errno
import os
import re
import shlex
from typing import Any

from hpc_elastic.errors import DamagedError, InputError, RunDirError, StoreError, UnfitFileError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.job.script import checksum
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.run_files import StoredJob
from hpc_elastic.slurm.submit import request, run_dir
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.typed_json import read

_MAY_PASS = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOTCONN)  # a file server is away
_NAMES_FUNCTIONS = re.compile(r'sha256sum\)" != "([0-9a-f]{64})  -"')
_MEND = "bring the file back from a backup or snapshot, or submit a new run; what was saved stays"
_NAMES_RUN = re.compile(r"^export HPC_ELASTIC_RUN_DIR=(.*)$", re.MULTILINE)


def read_spec(paths: RunPaths, by: object) -> JobSpec:
    """Return the stored job spec.

    Args:
        paths: the files of the run.
        by: the version of hpc_elastic that made the run, as far as it is known.

    Raises:
        RunDirError: it is missing or damaged, or holds what this version does not take.
        StoreError: the file system does not give it now.
    """
    stored = _spec_in(paths)
    try:
        return JobSpec(**stored)
    except InputError as error:
        version = f"use hpc_elastic {by} for this run, or " if by else ""
        raise RunDirError(
            f"{paths.job} holds what this version does not take: {error.where}: {error.message}",
            where="run_dir",
            fix=f"{version}mend that setting in the file",
        ) from None


def _spec_in(paths: RunPaths) -> dict[str, Any]:
    try:
        return read(StoredJob, read_plain(paths.job, alone=True)).spec
    except (OSError, DamagedError) as error:
        raise _unreadable(paths.job, error) from None


def read_script(paths: RunPaths) -> str:
    """Return the stored job script.

    Raises:
        RunDirError: it cannot be read, or belongs to a run directory in another place.
        StoreError: the file system does not give it now.
    """
    try:
        script = read_plain(paths.script, alone=True).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise _unreadable(paths.script, error) from None
    found = _NAMES_RUN.search(script)
    named = _unquoted(found[1]) if found else None
    if named is not None and not _is_same(named, paths.root):
        raise RunDirError(
            f"the run was made in {named} and is in {paths.root} now; its job script names the old place",
            where="run_dir",
            fix=f"move it back, or leave a link there: ln -s {shlex.quote(paths.root)} {shlex.quote(named)}",
        )
    return script


def read_functions(paths: RunPaths, script: str) -> str:
    """Return the text of ``batch.sh``; empty if the script does not read it, as those of older versions.

    Args:
        paths: the files of the run.
        script: the stored job script.

    Raises:
        RunDirError: it cannot be read, or is not what the script was made with.
        StoreError: the file system does not give it now.
    """
    found = _NAMES_FUNCTIONS.search(script)
    if found is None:
        return ""
    try:
        functions = read_plain(paths.functions, alone=True).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise _unreadable(paths.functions, error) from None
    if checksum(functions) != found[1]:
        raise RunDirError(
            f"{paths.functions} was changed: it is not the file that {paths.script} was made with",
            where="run_dir",
            fix=_MEND,
        )
    return functions


def _unquoted(text: str) -> str | None:
    """Return the one word that a shell would take for this, None if that cannot be told here."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return words[0] if len(words) == 1 and "$" not in text else None


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _unreadable(path: str, error: Exception) -> RunDirError | StoreError:
    if isinstance(error, OSError) and error.errno in _MAY_PASS:  # whoever has time tries again
        return StoreError(f"{path} cannot be read now: {error.strerror}", errno=error.errno)
    what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is damaged: {error}"
    return RunDirError(
        f"{path} {what}",
        where="run_dir",
        fix=error.fix if isinstance(error, UnfitFileError) else _MEND,
    )


def read_request(paths: RunPaths) -> SubmitRequest:
    """Return the stored request of a run directory; one without ``run.json`` has its name as run id.

    Raises:
        RunDirError: there is no run, it belongs to somebody else, or a file is missing or damaged.
    """
    has_job = os.path.exists(paths.job) and os.path.exists(paths.script)
    is_lost = has_job and not os.path.lexists(paths.identity)
    if os.path.isdir(paths.root):
        if os.stat(paths.root).st_uid != os.geteuid():
            owner = run_dir.owner_of(os.path.realpath(paths.root))
            raise RunDirError(
                f"the run in {paths.root} belongs to {owner}", where="run_dir", fix="ask its owner"
            )
        run_dir.require_own_run(paths.root)
    identity = {"run_id": paths.name} if is_lost else run_dir.read_identity(paths)
    spec, script = read_spec(paths, identity.get("version")), read_script(paths)
    run_id, functions = str(identity.get("run_id")), read_functions(paths, script)
    return SubmitRequest(spec, paths, run_id, request.new_token(), 0, script, functions=functions)
