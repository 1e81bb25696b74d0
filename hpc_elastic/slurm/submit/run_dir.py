"""The run directory at submission: check, create, remove it; read the job that is stored in it."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hpc_elastic import __version__
from hpc_elastic.clock import date_text
from hpc_elastic.errors import DamagedError, InputError, RunDirError, StoreError, UnfitFileError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs import existing_run
from hpc_elastic.slurm.run_jobs.run_files import StoredJob
from hpc_elastic.store import files, mount
from hpc_elastic.store import trust as above
from hpc_elastic.store.check import probe
from hpc_elastic.store.mount import Sharing
from hpc_elastic.store.plain_file import access_fix, owner_name, read_plain
from hpc_elastic.store.trust import require_own, require_own_entries
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import Prose, decode, parse_object, read

if TYPE_CHECKING:
    from hpc_elastic.slurm.job.spec import JobSpec
    from hpc_elastic.slurm.submit.request import SubmitRequest


_MAY_PASS = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOTCONN)  # a file server is away
_NAMES_FUNCTIONS = re.compile(r'sha256sum\)" != "([0-9a-f]{64})  -"')
_MEND = "bring the file back from a backup or snapshot, or submit a new run; the checkpoints stay"
_NAMES_RUN = re.compile(r"^export HPC_ELASTIC_RUN_DIR=(.*)$", re.MULTILINE)

FORMAT = 1
_OWN_NAMES = re.compile(
    r"(submissions|journal|tasks|members|nodes|steps|checkpoints|kv|logs|job\.json|job\.sbatch|slurm_script|batch\.sh|start\.bin|lock|site\.json|drain|slurm-[\w-]+\.out)|\..*"
)
_OTHER_DIR = "choose another --run-dir"


def check(root: str, *, allow_local: bool) -> list[str]:
    """Refuse a run directory that cannot be used for a new run. Changes nothing.

    Args:
        root: absolute path of the run directory; need not exist.
        allow_local: accept a directory that only this machine sees.

    Returns:
        Warnings.

    Raises:
        RunDirError: foreign, not a directory, not writable, not empty, not shared, or holds a run.
    """
    shared = _check_above(root)
    place = probe.nearest(root)
    if os.path.lexists(root):
        _check_existing(root)
    else:
        _check_parent(root, place)
    warnings = [] if allow_local else _check_shared(root)
    return [*shared, *warnings, *_check_works(root, place)]


def _check_above(root: str) -> list[str]:
    """Refuse a directory that anybody can exchange; warn of one that is shared with others."""
    try:
        found = above.refuse_open(root, "run_dir")
    except OSError:  # the next step tells the fault
        return []
    return [f"the run directory {root} is in a shared place: {above.shared_text(found)}"] if found else []


def owner_of(place: str) -> str:
    """Return the name of the owner of a file or link, for people."""
    return owner_name(os.lstat(place).st_uid)


def _check_existing(root: str) -> None:
    if not os.path.isdir(root):
        raise RunDirError(f"the run directory {root} is not a directory", where="run_dir", fix=_OTHER_DIR)
    if os.stat(root).st_uid != os.geteuid():
        raise RunDirError(
            f"the run directory {root} belongs to {owner_of(root)}", where="run_dir", fix=_OTHER_DIR
        )
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise RunDirError(
            f"the run directory {root} is not writable",
            where="run_dir",
            fix=f"chmod u+rwx it, or {_OTHER_DIR}",
        )
    names = os.listdir(root)
    is_left = "run.json" in names and existing_run.was_left(RunPaths(root))
    if "run.json" in names and not is_left:
        raise _holds_a_run(root)
    own = {"run.json"} if is_left else set()
    foreign = sorted(name for name in names if not _OWN_NAMES.fullmatch(name) and name not in own)
    if foreign:
        raise RunDirError(
            f"the run directory {root} is not empty: it holds {foreign[0]!r}",
            where="run_dir",
            fix="name a new directory",
        )
    _check_entries(root, names)


def _check_entries(root: str, names: list[str]) -> None:
    """Refuse files that others have put into a directory under a name that a run uses."""
    used = sorted(name for name in names if _OWN_NAMES.fullmatch(name) and not name.startswith("."))
    require_own_entries(root, used, "run_dir")


def require_own_run(root: str) -> None:
    """Check that the directory of a run that is to go on is the user's alone, as are those above it.

    Raises:
        RunDirError: it is not.
    """
    try:
        above.refuse_open(root, "run_dir")
        require_own(root, f"run directory {root}")
        _check_entries(root, os.listdir(root))
    except OSError as error:
        raise RunDirError(
            f"{error.filename or root} cannot be read: {error.strerror}", where="run_dir", fix=_OTHER_DIR
        ) from None


def _holds_a_run(root: str) -> RunDirError:
    paths = RunPaths(root)
    identity = read_identity(paths)
    if not os.path.exists(paths.script):
        return RunDirError(
            f"the run directory {root} holds a run whose submission was interrupted or is just being made",
            where="run_dir",
            fix=f"unless another submit is at work there: rm {for_shell(paths.identity)}, and submit again",
        )
    return RunDirError(
        f"the run directory {root} already holds the run {identity.get('run_id', '?')}",
        where="run_dir",
        fix=f"{_OTHER_DIR}, or start that run again: hpc-elastic submit --resume {for_shell(root)}",
    )


def _check_parent(root: str, parent: str) -> None:
    if not os.path.isdir(parent):
        raise RunDirError(
            f"the run directory {root} cannot be created: {parent} is a file", where="run_dir", fix=_OTHER_DIR
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RunDirError(
            f"the run directory {root} cannot be created: {parent} is not writable",
            where="run_dir",
            fix=f"{access_fix(parent, 'wx')}, or {_OTHER_DIR}",
        )


def _check_shared(root: str) -> list[str]:
    found = mount.mount_at(root)
    judged = mount.sharing(os.path.realpath(root), found)
    if judged is Sharing.LOCAL:
        raise RunDirError(
            f"the run directory {root} is not shared: only this machine sees {found.kind} on {found.point}",
            where="run_dir",
            fix="choose a directory that all nodes see; --allow-local-run-dir if they do see this one",
        )
    if judged is Sharing.UNCERTAIN:
        warning = (
            f"the run directory {root} is on {found.kind}, which looks like a local disk\n"
            "  fix: choose a directory that all nodes see; --allow-local-run-dir if they do see this one"
        )
        return [warning]
    return []


def _check_works(root: str, place: str) -> list[str]:
    """Try out in a few milliseconds the needs of every record of a run: room, and exclusive names.

    Args:
        root: the run directory.
        place: it, or the nearest directory above it that is there.
    """
    from hpc_elastic.store.check import findings  # noqa: PLC0415 - for a new run; `status` imports this module

    found = [
        *findings.space_findings(probe.space_of(place)),
        *findings.trial_findings(probe.quick_probe(place)),
    ]
    for finding in found:
        if finding.level is findings.Level.PROBLEM:
            raise RunDirError(
                f"the run directory {root} cannot be used: {finding.what}: {finding.value}",
                where="run_dir",
                fix=finding.fix,
            )
    return [
        f"the run directory {root}: {finding.what}: {finding.value}\n  fix: {finding.fix}"
        for finding in found
        if finding.level is findings.Level.WARNING
    ]


class _Form(NamedTuple):
    """The fields of ``run.json`` of every version."""

    format: int
    version: Prose = ""


class _Identity(NamedTuple):
    """The fields of ``run.json`` of this version."""

    format: int
    version: Prose = ""
    run_id: str = ""
    name: Prose = ""
    created: Prose = ""
    user: Prose = ""
    token: str = ""
    creator: str = ""
    directory: str = ""


def _way_to_read(path: str, error: OSError) -> str:
    """Return the way out where a file of a run cannot be read."""
    if isinstance(error, UnfitFileError):
        return error.fix
    return access_fix(path, "rw") if isinstance(error, PermissionError) else _OTHER_DIR


def read_identity(paths: RunPaths) -> dict[str, object]:
    """Return the content of ``run.json``.

    Raises:
        RunDirError: there is none, or it is damaged or of another format.
    """
    try:
        data = files.read(paths.identity)
    except OSError as error:
        raise RunDirError(
            f"{paths.identity} cannot be read: {error.strerror}",
            where="run_dir",
            fix=_way_to_read(paths.identity, error),
        ) from None
    if data is None:
        raise RunDirError(
            f"{paths.root} holds no run (there is no run.json)",
            where="run_dir",
            fix="give the run directory that submit printed",
        )
    try:
        identity = parse_object(data)
        decode(_Identity if identity.get("format") == FORMAT else _Form, identity)
    except DamagedError as error:
        raise RunDirError(
            f"{paths.identity} is damaged: {error}",
            where="run_dir",
            fix=f"nothing of the run is lost: rm {for_shell(paths.identity)}, then "
            f"hpc-elastic submit --resume {for_shell(paths.root)}; for a new run {_OTHER_DIR}",
        ) from None
    if identity["format"] != FORMAT:
        by = identity.get("version", "another version")
        raise RunDirError(
            f"{paths.identity} has format {identity['format']} and was written by hpc_elastic {by}; "
            f"this is {__version__}, which reads format {FORMAT}",
            where="run_dir",
            fix=f"use hpc_elastic {by} for this run, or {_OTHER_DIR}",
        )
    return identity


def identity_trouble(paths: RunPaths) -> list[str]:
    """Return the faults of ``run.json`` and the advice, as lines; nothing if it is well or not there."""
    try:
        if os.path.lexists(paths.identity):
            read_identity(paths)
    except RunDirError as error:
        return [error.message, f"fix: {error.fix}"]
    return []


def create(request: SubmitRequest, *, now_s: float) -> bool:
    """Create the run directory with the job's files.

    Args:
        request: names, spec, script and functions of the run.
        now_s: wall time, for display [s since the epoch].

    Returns:
        Whether the directory itself is new.

    Raises:
        RunDirError: it cannot be created, and nothing that blocks is left behind; or another submission
            was first.
    """
    paths, is_new = request.paths, False
    job, start = request.job_json(), _start_of(request)
    directories, created = paths.directories(), date_text(now_s)
    data = _identity_of(request, created)
    try:
        is_new = files.make_own(paths.root)
        if not is_new:
            _close(paths.root)
        if not files.publish_new(paths.identity, data):
            if not existing_run.may_be_made_anew(paths):
                raise _holds_a_run(paths.root)
            files.replace(paths.identity, data)
        for directory in (*directories, *([paths.tasks] if request.is_array else [])):
            files.make_directory(directory)
        files.replace(paths.job, job)
        files.replace(paths.functions, request.functions.encode())
        _write_own(request)
        if start is not None:
            with suppress(OSError):
                files.replace(paths.start, start)
        files.replace(paths.script, request.script.encode("utf-8", "surrogateescape"))
    except OSError as error:
        if _holds(paths, request.token):
            discard(paths, with_root=is_new)
        raise RunDirError(
            f"the run directory {paths.root} cannot be written: {error.strerror} ({error.filename})",
            where="run_dir",
            fix=_OTHER_DIR,
        ) from None
    return is_new


def _write_own(request: SubmitRequest) -> None:
    if request.own_script is not None:
        files.replace(request.paths.own_script, request.own_script.data)


def _identity_of(request: SubmitRequest, created: str) -> bytes:
    """Return the content of ``run.json``."""
    identity = {
        "format": FORMAT,
        "version": __version__,
        "run_id": request.run_id,
        "name": request.spec.name,
        "created": created,
        "user": _user(),
        "token": request.token,
        "creator": existing_run.creator(),
        "directory": request.directory,
    }
    return (json.dumps(identity, indent=1) + "\n").encode()


def write_start(request: SubmitRequest) -> None:
    """Write the file from which the agents start, if the script has them do so.

    Without it, or for want of room, they start from the installed package and say so.
    """
    content = _start_of(request)
    if content is not None:
        with suppress(OSError):
            files.replace(request.paths.start, content)


def _start_of(request: SubmitRequest) -> bytes | None:
    """Return the content of that file; None: the script has none, or it cannot be made."""
    line = shlex.quote(request.paths.start)  # noqa: TID251 - of the script
    from hpc_elastic.isolated import lookup  # noqa: PLC0415 - for a new run, as above

    return lookup.one_file() if line in request.script else None


def _holds(paths: RunPaths, token: str) -> bool:
    """Tell whether the content of a run directory is of one submission, or there is none."""
    try:
        return read_identity(paths).get("token") == token
    except RunDirError:
        return not os.path.lexists(paths.identity)


def _close(root: str) -> None:
    """Have a directory that was there before be this user's alone."""
    status = os.stat(root)
    if status.st_uid != os.geteuid():
        raise RunDirError(
            f"the run directory {root} belongs to {owner_of(root)}", where="run_dir", fix=_OTHER_DIR
        )
    if stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
        os.chmod(root, 0o700)
        _check_entries(root, os.listdir(root))  # no other user can add to them any more


def _user() -> str:
    import pwd  # noqa: PLC0415 - not on the agent's path

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def discard(paths: RunPaths, *, with_root: bool) -> None:
    """Take away the files of `create`, after Slurm refused the job; logs and foreign files stay.

    Args:
        paths: the files of the run.
        with_root: remove the directory itself too, if it is empty.
    """
    for file in (
        paths.identity,
        paths.job,
        paths.functions,
        paths.own_script,
        paths.start,
        paths.script,
    ):
        _quietly(os.unlink, file)
    for directory in (paths.tasks, *reversed(paths.directories())):
        _quietly(os.rmdir, directory)
    if with_root:
        _quietly(os.rmdir, paths.root)
        if os.path.basename(os.path.dirname(paths.root)) == RUNS_FOLDER:
            _quietly(os.rmdir, os.path.dirname(paths.root))


def _quietly(remove: object, path: str) -> None:
    try:
        remove(path)  # type: ignore[operator]
    except OSError:
        pass


def read_spec(paths: RunPaths, by: object) -> JobSpec:
    """Return the stored job spec.

    Args:
        paths: the files of the run.
        by: the version of hpc_elastic that made the run, as far as it is known.

    Raises:
        RunDirError: it is missing or damaged, or holds fields that this version does not take.
        StoreError: the file system does not give it now.
    """
    from hpc_elastic.slurm.job.spec import JobSpec  # noqa: PLC0415 - heavy; not for commands that only look

    stored = _spec_in(paths)
    try:
        return JobSpec(**stored)
    except InputError as error:
        version = f"use hpc_elastic {by} for this run, or " if by else ""
        raise RunDirError(
            f"{paths.job} holds a value that this version does not take: {error.where}: {error.message}",
            where="run_dir",
            fix=f"{version}mend that setting in the file",
        ) from None


def _spec_in(paths: RunPaths) -> dict[str, Any]:
    try:
        return read(StoredJob, read_plain(paths.job)).spec
    except (OSError, DamagedError) as error:
        raise _unreadable(paths.job, error) from None


def read_script(paths: RunPaths) -> str:
    """Return the stored job script.

    Raises:
        RunDirError: it cannot be read, or belongs to a run directory in another place.
        StoreError: the file system does not give it now.
    """
    try:
        script = read_plain(paths.script).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise _unreadable(paths.script, error) from None
    found = _NAMES_RUN.search(script)
    named = _unquoted(found[1]) if found else None
    if named is not None and not _is_same(named, paths.root):
        raise RunDirError(
            f"the run was made in {named} and is in {paths.root} now; its job script names the old place",
            where="run_dir",
            fix=f"move it back, or leave a link there: ln -s {for_shell(paths.root)} {for_shell(named)}",
        )
    return script


def read_functions(paths: RunPaths, script: str) -> str:
    """Return the text of ``batch.sh``; empty if the script does not read it, as those of older versions.

    Args:
        paths: the files of the run.
        script: the stored job script.

    Raises:
        RunDirError: it cannot be read, or is not the one that the script was made with.
        StoreError: the file system does not give it now.
    """
    found = _NAMES_FUNCTIONS.search(script)
    if found is None:
        return ""
    try:
        functions = read_plain(paths.functions).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise _unreadable(paths.functions, error) from None
    from hpc_elastic.slurm.job.script import checksum  # noqa: PLC0415 - heavy

    if checksum(functions) != found[1]:
        raise RunDirError(
            f"{paths.functions} was changed: it is not the file that {paths.script} was made with",
            where="run_dir",
            fix=_MEND,
        )
    return functions


def _unquoted(text: str) -> str | None:
    """Return the one word that a shell would take for this, None if that is not known here."""
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
    if isinstance(error, OSError) and error.errno in _MAY_PASS:  # a caller with time tries again
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
        RunDirError: there is no run, it belongs to another user, or a file is missing or damaged.
    """
    from hpc_elastic.slurm.submit.request import SubmitRequest, new_token  # noqa: PLC0415 - heavy

    has_job = os.path.exists(paths.job) and os.path.exists(paths.script)
    is_lost = has_job and not os.path.lexists(paths.identity)
    if os.path.isdir(paths.root):
        if os.stat(paths.root).st_uid != os.geteuid():
            owner = owner_of(os.path.realpath(paths.root))
            raise RunDirError(
                f"the run in {paths.root} belongs to {owner}", where="run_dir", fix="ask its owner"
            )
        require_own_run(paths.root)
    identity = {"run_id": paths.name} if is_lost else read_identity(paths)
    spec, script = read_spec(paths, identity.get("version")), read_script(paths)
    run_id, functions = str(identity.get("run_id")), read_functions(paths, script)
    directory = str(identity.get("directory") or "")
    return SubmitRequest(
        spec, paths, run_id, new_token(), 0, script, functions=functions, directory=directory
    )
