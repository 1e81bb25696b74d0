"""``hpc-elastic config``: the settings that settings files give to jobs, and their origins."""

from __future__ import annotations

import json as to_json
import os
from collections.abc import Mapping, Sequence

from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.secrets_out import BLANK, is_secret_name
from hpc_elastic.settings.setting import TABLES
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.client.commands import options_by_variables
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, places_of, read_job_file
from hpc_elastic.slurm.job.own_script_file import is_job_script
from hpc_elastic.slurm.job.settings_files import (
    PROJECT_FILE,
    SettingsPlace,
    places_of_files,
    profile_names,
    read_files,
    settings_for,
)
from hpc_elastic.text import visible

FORMAT = 1
_NAMES_OF_PROGRAM = ("command", "module")
_UNNAMED = {
    "site": f"none: {Env.SITE_CONFIG} is empty",
    "user": "none",
    "project": f"no {PROJECT_FILE} here or above",
}
_NO_COMMAND = {"command": ("true",)}  # a job has one; the settings are looked at here


class SettingInForce(NamedTuple):
    """A setting of a job that is made here and now.

    Attributes:
        name: of the setting, or of the entry of a table: ``env.NAME``.
        value: as it is used.
        origin: the line of a file, or a variable of the environment.
        instead_of: the lines of files that set it, too, and do not hold.
    """

    name: str
    value: object
    origin: str
    instead_of: tuple[str, ...] = ()


def config(job_file: str | None = None, profile: str | None = None, *, json: bool = False) -> None:
    """Show the settings that settings files give to jobs, each with its origin."""
    environ = os.environ  # noqa: TID251 - the defaults of a user
    places = places_of_files(environ, os.getcwd())
    files = read_files(places)
    own = (job_file,) if job_file is not None and is_job_script(job_file) else ()
    job = JobFile() if job_file is None or own else read_job_file(job_file)
    for name in profile_names(files):  # a mistake in one comes up before a job needs it
        build_spec(JobFile(values=_NO_COMMAND), {}, settings_for({}, name))
    found = in_force(job, profile, environ, own)
    there = {file.path for file in files}
    if json:
        hand_out(_json(places, there, profile_names(files), found))
    else:
        _show(places, there, files, found)


def in_force(
    job: JobFile, profile: str | None, environ: Mapping[str, str], own: tuple[str, ...] = ()
) -> list[SettingInForce]:
    """Return the settings of a job, in the order of their table.

    Args:
        job: the job file; an empty one if there is none.
        profile: of the settings files.
        environ: of this process.
        own: the job script of the user's own that is the job; empty: it is none.

    Raises:
        InputError: a file cannot be used, or a value of one.
    """
    given: Mapping[str, object] = _NO_COMMAND
    if own:
        given = {"mode": "script", "command": own}
    elif any(name in job.values for name in _NAMES_OF_PROGRAM):
        given = {}
    settings = settings_for({**job.values, **given}, profile)
    spec = build_spec(job, given, settings)
    files = [*settings.files, job]
    found = [
        _with_origin(name, value, files)
        for name, value in _entries({name: value for name, value in spec.given.items() if name not in given})
    ]
    by_variable = options_by_variables(environ, is_own=spec.mode == "script")
    shown = {options.OPTION_OF.get(one.name, one.name.removeprefix("sbatch.")) for one in found}
    for option, variable in by_variable.items():
        if option not in shown:
            name = options.FIELDS.get(option, f"sbatch.{option}")
            below = tuple(places_of(name, files))
            found.append(SettingInForce(name, environ[variable], variable, below))
    order = list(JOB)
    return sorted(found, key=lambda one: order.index(one.name.partition(".")[0]))


def _entries(fields: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return fields with each entry of a table by itself; a value that is secret by its name is left out."""
    found: list[tuple[str, object]] = []
    for name, value in fields.items():
        if JOB[name].kind in TABLES and isinstance(value, Mapping):
            found += [
                (f"{name}.{key}", BLANK if is_secret_name(str(key)) else each) for key, each in value.items()
            ]
        else:
            found.append((name, value))
    return found


def _with_origin(name: str, value: object, files: Sequence[JobFile]) -> SettingInForce:
    origin, *others = places_of(name, files)
    return SettingInForce(name, value, origin, tuple(others))


def _show(
    places: Sequence[SettingsPlace],
    there: set[str],
    files: Sequence[JobFile],
    found: Sequence[SettingInForce],
) -> None:
    say("settings files, of which the later ones win:")
    for place in places:
        is_absent = place.path and place.path not in there
        path = place.path or _UNNAMED[place.whose]
        say(f"  {place.whose:7}  {visible(path)}{' (not there)' if is_absent else ''}")
    if names := profile_names(files):
        say(f"profiles: {', '.join(names)}")
    if not found:
        say("no setting is given")
        return
    rows = [(one.name, to_json.dumps(one.value, ensure_ascii=False), one) for one in found]
    width = max(len(name) for name, _, _ in rows)
    most = max(len(value) for _, value, _ in rows)
    say("")
    for name, value, one in rows:
        others = f", instead of {', '.join(one.instead_of)}" if one.instead_of else ""
        say(visible(f"{name:{width}} = {value:{most}}  # {one.origin}{others}"))


def _json(
    places: Sequence[SettingsPlace], there: set[str], profiles: Sequence[str], found: Sequence[SettingInForce]
) -> str:
    from hpc_elastic.report.explain.as_json import document  # noqa: PLC0415 - for programs alone

    files = [
        {"whose": each.whose, "path": each.path or None, "is_there": each.path in there} for each in places
    ]
    settings = [
        {"name": one.name, "value": one.value, "origin": one.origin, "instead_of": list(one.instead_of)}
        for one in found
    ]
    return document("config", {"files": files, "profiles": list(profiles), "settings": settings})
