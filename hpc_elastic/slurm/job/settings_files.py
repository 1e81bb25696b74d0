"""Settings files: those of the site, the user and the project, which give settings to all jobs.

Such a file names programs that run as the user, so it is read only where no other user can write to it.
Commands that make a job read them; an agent on a node never does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import PATH, FinishFlag
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.client.commands import options_by_variables
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.job_file import NO_SETTINGS, FileSettings, JobFile, read_toml
from hpc_elastic.slurm.job.own_script import OwnScript, is_profile_of_slurm, names_in, sbatch_line
from hpc_elastic.slurm.job.own_script_file import read_own_script
from hpc_elastic.slurm.job.spec import read_fields
from hpc_elastic.store.plain_file import GivenFile, access_fix, owner_name
from hpc_elastic.store.trust import other_writers, trusted_uids, way_to
from hpc_elastic.store.users_file import read_users_file
from hpc_elastic.text import for_shell

SITE_FILE = "/etc/hpc-elastic/config.toml"
USER_FILE = "hpc-elastic/config.toml"  # below the directory of the user's settings
PROJECT_FILE = "hpc-elastic.toml"
_PROFILES, _EXTENDS = "profiles", "extends"
_OF_ONE_JOB = ("command", "module", "run_dir", "sbatch_options")
_HARM = "settings files name programs that run as you"
_OF_SCRIPTS_TEXT = (
    "account partition qos reservation constraint exclude mail_type mail_user comment time inherit_env "
    "python allow_local_run_dir expedite chain_by exclude_suspects ledger"
)
_OF_SCRIPTS = frozenset(_OF_SCRIPTS_TEXT.split())
_NOT_OF_SCRIPTS = frozenset(
    name for name, row in JOB.items() if name not in _OF_SCRIPTS and not isinstance(row.to, FinishFlag)
)
"""Settings that a job script takes from no file: it asks for its own resources."""
_NAMES_OR_PATHS = frozenset(("python", "conda"))
_NOT_LOCAL = frozenset(("mode", "nodes", "spares"))


class SettingsPlace(NamedTuple):
    """A place where a settings file is looked for.

    Attributes:
        whose: ``site``, ``user`` or ``project``.
        path: of the file; empty: none was found.
        is_named: whether the user has named it, so that it has to be there.
    """

    whose: str
    path: str
    is_named: bool = False


def places_of_files(environ: Mapping[str, str], here: str) -> list[SettingsPlace]:
    """Return the places where settings files are looked for, the most general one first.

    Args:
        environ: of this process.
        here: the working directory.
    """
    of_site = environ.get(Env.SITE_CONFIG)
    base = environ.get("XDG_CONFIG_HOME", "")
    base = base if base.startswith("/") else os.path.expanduser("~/.config")  # as that convention wants it
    return [
        SettingsPlace("site", SITE_FILE if of_site is None else of_site, is_named=bool(of_site)),
        SettingsPlace("user", os.path.join(base, USER_FILE) if base.startswith("/") else ""),
        SettingsPlace("project", _nearest(here)),
    ]


def _nearest(here: str) -> str:
    """Return the settings file of the directory, or of the nearest one above that has one."""
    directory = here
    while True:
        path = os.path.join(directory, PROJECT_FILE)
        if os.path.lexists(path):
            return path
        if directory in ("/", ""):
            return ""
        directory = os.path.dirname(directory)


def read_files(places: Iterable[SettingsPlace]) -> list[JobFile]:
    """Return the settings files that are there, in the order of their places.

    Raises:
        InputError: another user can write to one, or it cannot be read, or is not TOML.
    """
    return [file for place in places if place.path and (file := _read(place)) is not None]


def _read(place: SettingsPlace) -> JobFile | None:
    path = place.path
    try:
        _refuse_foreign_links(place)
        given = read_users_file(path)
        _refuse_foreign(place, given)
        text = given.data.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if not place.is_named and not os.path.islink(path):
            return None
        what = f"the settings file {path} does not exist"
        raise InputError(what, where=_where(place), fix=_way_on(place, "check the path")) from None
    except UnicodeDecodeError as error:
        raise InputError(f"it is not UTF-8: {error}", where=path, fix="save it as UTF-8") from None
    except OSError as error:
        what = f"the settings file cannot be read: {error.strerror}"
        raise InputError(what, where=path, fix=_way_on(place, _unread_fix(path, error))) from None
    return JobFile(path, read_toml(path, text), text)


def _where(place: SettingsPlace) -> str:
    return Env.SITE_CONFIG if place.is_named else place.path


def _unread_fix(path: str, error: OSError) -> str:
    try:
        return access_fix(path, "r") if isinstance(error, PermissionError) else "check the path"
    except OSError:
        return "check the path"


def _refuse_foreign_links(place: SettingsPlace) -> None:
    """Refuse a file behind a link that another user has made, and can lead to another file."""
    for step in way_to(os.path.abspath(place.path)):
        if step.is_link and step.entry_uid not in trusted_uids():
            raise InputError(
                f"{step.entry} is a link of user {owner_name(step.entry_uid or 0)}, and {_HARM}",
                where=place.path,
                fix=_way_on(place, "take the link away, or put the file itself there"),
            )


def _refuse_foreign(place: SettingsPlace, given: GivenFile) -> None:
    """Refuse a file that another user owns or can write to."""
    path, found = place.path, given.found
    if found.st_uid not in trusted_uids():
        raise InputError(
            f"the settings file belongs to user {owner_name(found.st_uid)}, and {_HARM}",
            where=path,
            fix=_way_on(place, "read it, and copy it to a file of your own"),
        )
    if by := other_writers(path, given):
        mend = f"chmod go-w {for_shell(os.path.realpath(path))}"
        whose = "" if found.st_uid == os.geteuid() else f"have {owner_name(found.st_uid)} do: "
        raise InputError(
            f"{by} can write to the settings file (mode {stat.S_IMODE(found.st_mode):o}), and {_HARM}",
            where=path,
            fix=_way_on(place, f"see whether it is as you left it, then {whose}{mend}"),
        )


def _way_on(place: SettingsPlace, fix: str) -> str:
    """Return a fix with the way on without the file."""
    if place.whose == "site":
        return f"{fix}; without the file of the site: {Env.SITE_CONFIG}= hpc-elastic ..."
    if place.whose == "project":
        return f"{fix}; a nearer {PROJECT_FILE} of your own, also an empty one, goes before it"
    return fix


def layers_of(files: Sequence[JobFile], profile: str | None) -> tuple[JobFile, ...]:
    """Return the settings files of a job: the files themselves, then the tables of a profile.

    A profile goes before the one that it extends; of one profile the table of the later file goes first.

    Args:
        files: the more general ones first.
        profile: the name of the profile; None: none is asked for.

    Raises:
        InputError: there is no such profile, profiles extend each other in a circle, or a table or setting
            has no place here.
    """
    tables = [_profiles_in(file) for file in files]
    base = [_checked(file._replace(values=_without(file.values, _PROFILES))) for file in files]
    if profile is None:
        return tuple(base)
    found: list[JobFile] = []
    for name in reversed(_line_of_profiles(profile, tables)):
        found += [
            _checked(table._replace(values=_without(table.values, _EXTENDS)))
            for table in _named(name, tables)
        ]
    return (*base, *found)


def profile_names(files: Sequence[JobFile]) -> list[str]:
    """Return the names of all profiles of settings files.

    Raises:
        InputError: as for `layers_of`.
    """
    return sorted({name for file in files for name in _profiles_in(file)})


def profiles_here() -> list[str]:
    """Return the names of the profiles that a job which is made here may ask for.

    Raises:
        InputError: a settings file cannot be used.
    """
    return profile_names(read_files(places_of_files(os.environ, os.getcwd())))  # noqa: TID251 - as below


def _without(values: Mapping[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in values.items() if name != key}


def _profiles_in(file: JobFile) -> dict[str, JobFile]:
    """Return the profiles of a file, each as a file of its own.

    Raises:
        InputError: one is no table, or has a name that it cannot have.
    """
    found = file.values.get(_PROFILES, {})
    if not isinstance(found, Mapping):
        raise _at(file, _PROFILES, "profiles is no table", "write [profiles.NAME], and settings below it")
    tables: dict[str, JobFile] = {}
    for name, values in found.items():
        table = file._replace(values=values, table=f"{_PROFILES}.{name}")
        if not isinstance(values, Mapping):
            raise _at(file, f"{_PROFILES}.{name}", f"profiles.{name} is no table", f"write [profiles.{name}]")
        if is_profile_of_slurm(name):
            what = f"the profile {name!r} has the name of one of Slurm's own (sbatch --profile={name})"
            raise _at(file, f"{_PROFILES}.{name}", what, "choose another name")
        tables[name] = table
    return tables


def _at(file: JobFile, key: str, message: str, fix: str) -> InputError:
    line = file.line(key)
    return InputError(f"{message}\n    {line}" if line else message, where=file.place(key), fix=fix)


def _named(name: str, tables: Sequence[Mapping[str, JobFile]]) -> list[JobFile]:
    return [of_file[name] for of_file in tables if name in of_file]


def _line_of_profiles(profile: str, tables: Sequence[Mapping[str, JobFile]]) -> list[str]:
    """Return a profile, the one that it extends, the one that this extends, and so on.

    Raises:
        InputError: there is no such profile, or one extends itself over others.
    """
    line: list[str] = []
    name, by = profile, JobFile()
    while name:
        if name in line:
            circle = " extends ".join([*line[line.index(name) :], name])
            raise _at(
                by,
                _EXTENDS,
                f"profiles extend each other in a circle: {circle}",
                "take extends out of one of them",
            )
        mine = _named(name, tables)
        if not mine:
            raise _no_profile(name, by, tables)
        line.append(name)
        by = next((table for table in reversed(mine) if _EXTENDS in table.values), JobFile())
        following = by.values.get(_EXTENDS, "")
        if not isinstance(following, str):
            raise _at(
                by, _EXTENDS, f"extends = {following!r} is not the name of a profile", 'extends = "NAME"'
            )
        name = following
    return line


def _no_profile(name: str, by: JobFile, tables: Sequence[Mapping[str, JobFile]]) -> InputError:
    known = sorted({each for of_file in tables for each in of_file})
    fix = options.near(name, known) or (
        f"the profiles are: {', '.join(known)}" if known else f"write [profiles.{name}] into a settings file"
    )
    what = f"there is no profile {name!r}"
    if by.path:
        return _at(by, _EXTENDS, what, fix)
    return InputError(what, where="--profile", fix=f"{fix}; Slurm's own profiling: -o profile=VALUE")


def _checked(file: JobFile) -> JobFile:
    """Return a file or table with paths that do not depend on the working directory.

    Raises:
        InputError: it has a setting of one job alone.
    """
    for name in _OF_ONE_JOB:
        if name in file.values:
            raise _at(
                file,
                name,
                f"{name} is a setting of one job",
                f"write {name} in a job file or on the command line",
            )
    if file.values.get("mode") == "script":
        raise _at(file, "mode", "mode = 'script' is a setting of one job", "leave it out")
    above = os.path.dirname(os.path.abspath(file.path))
    return file._replace(values={name: _anchored(name, value, above) for name, value in file.values.items()})


def _anchored(name: str, value: object, above: str) -> object:
    """Return a value with a path that begins at the directory of its file."""
    row = JOB.get(name)
    is_path = row is not None and (row.kind is PATH or name in _NAMES_OR_PATHS)
    if (
        not is_path
        or not isinstance(value, str)
        or not value
        or (name in _NAMES_OR_PATHS and "/" not in value)
    ):
        return value
    return os.path.join(above, os.path.expanduser(value))


def settings_for(
    job: Mapping[str, object],
    profile: str | None = None,
    *,
    is_local: bool = False,
    own: OwnScript | None = None,
    environ: Mapping[str, str] | None = None,
) -> FileSettings:
    """Return the settings that settings files give to a job of this directory and moment.

    Args:
        job: the fields that the job itself gives, as they were written.
        profile: the name of a profile of the files.
        is_local: the job is played on this machine.
        own: the job script of the user's own that is the job; None: where it is one, it is read.
        environ: by default of this process.

    Raises:
        InputError: a file cannot be used, or there is no such profile.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251 - the defaults of a user
    files = layers_of(read_files(places_of_files(variables, os.getcwd())), profile)
    if not files:
        return NO_SETTINGS
    if job.get("mode") == "script":
        taken, left_out = _of_script(job, own)
        by_variables = options_by_variables(variables, is_own=True)
        return FileSettings(files, frozenset({*by_variables, *taken}), left_out)
    by_variables = options_by_variables(variables)
    return FileSettings(files, frozenset(by_variables), _NOT_LOCAL if is_local else frozenset())


def _of_script(job: Mapping[str, object], own: OwnScript | None) -> tuple[set[str], frozenset[str]]:
    """Return the options that a job script has in its lines or its line of sbatch, and settings not for it.

    A script with several components, or with lines of PBS or LSF, gets no option of sbatch from files: one
    would reach a single component, or go before such a line.
    """
    try:
        read = read_fields({name: job[name] for name in ("command", "sbatch_options") if name in job})
        line = sbatch_line(read.get("sbatch_options", ()))
        if own is None:
            own = read_own_script(os.path.abspath(os.path.expanduser(read["command"][0])))
    except (InputError, LookupError):  # the check of the job itself refuses it
        return set(), _NOT_OF_SCRIPTS
    is_plain = not own.is_heterogeneous and not own.lines_of_others
    left_out = _NOT_OF_SCRIPTS if is_plain else _NOT_OF_SCRIPTS | {*options.OPTION_OF}
    return names_in([*own.option_lines, line]), left_out
