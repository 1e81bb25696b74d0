"""Job files (TOML): reading one, and laying it over settings files, and command-line options over it.

Errors name file and line.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.isolated.argv import CALL
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import TABLES
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.environment import OF_ENVIRONMENTS, is_image_alone, without_other_python
from hpc_elastic.slurm.job.spec import JobSpec, read_fields, read_value
from hpc_elastic.store.plain_file import absence_fix, access_fix, given_file
from hpc_elastic.store.trust import other_owner, other_writers
from hpc_elastic.text import for_shell

_TOML_READER = "tomllib" if sys.version_info >= (3, 11) else "tomli"  # the same module by two names
_TABLES = {name: row for name, row in JOB.items() if row.kind in TABLES}
_GIVEN_TWICE = "Cannot overwrite a value"  # of the parser of TOML
_FOR_SBATCH = (".sbatch", ".slurm", ".batch", ".sl")  # names of job scripts, with #! or without
_OTHER_FORMATS = (".json", ".yaml", ".yml")


class JobFile(NamedTuple):
    """The content of a job file, and its text for error messages.

    Args:
        path: as the user gave it; empty if there is no file.
        values: the fields of a job spec.
        text: the content.
        owner: the other user to whom it belongs; empty: it is the user's or root's.
        others: the other users who may have written it, in words; empty: none.
        table: the table of the file that has the values; empty: they stand at its top level.
    """

    path: str = ""
    values: Mapping[str, object] = {}
    text: str = ""
    owner: str = ""
    others: str = ""
    table: str = ""

    @property
    def warnings(self) -> list[str]:
        """The owner, where that is another user."""
        if not self.owner:
            return []
        what = f"{self.path} belongs to user {self.owner}: its command, setup and python run as you"
        return [f"{what}\n  fix: read it, or copy it to a file of your own"]

    def place(self, key: str) -> str:
        """Return ``file:line`` of a key (``nodes``, ``sbatch.mem``), or the file if it cannot be found."""
        number = line_of(self.text, key, self.table)
        return f"{self.path}:{number}" if number else self.path

    def line(self, key: str) -> str:
        """Return the offending line as it stands in the file, or nothing."""
        number = line_of(self.text, key, self.table)
        return self.text.splitlines()[number - 1].strip() if number else ""


def read_job_file(path: str) -> JobFile:
    """Read a job file.

    Raises:
        InputError: it does not exist, cannot be read, or is not TOML; with line and text.
    """
    _refuse_by_name(path)
    try:
        given = given_file(path)
        text = given.data.decode("utf-8-sig")  # some editors of Windows begin a file with a mark
        owner, others = other_owner(given), other_writers(path, given)
    except UnicodeDecodeError as error:
        raise InputError(f"the job file is not UTF-8: {error}", where=path, fix="save it as UTF-8") from None
    except FileNotFoundError:
        kind = "script" if path.endswith((".sh", *_FOR_SBATCH)) else "file"
        what = f"the job {kind} {path} does not exist"
        raise InputError(what, where=path, fix=_missing_fix(path)) from None
    except OSError as error:
        raise InputError(
            f"the job file cannot be read: {error.strerror}", where=path, fix=_unread_fix(path, error)
        ) from None
    if path.endswith((".sh", *_FOR_SBATCH)):
        raise _script_error(path, text)
    try:
        return JobFile(path, read_toml(path, text), text, owner, others)
    except InputError:
        if text.startswith("#!") or _has_options(text):  # also comments of TOML
            raise _script_error(path, text) from None
        raise


def read_toml(path: str, text: str) -> dict[str, object]:
    """Return the content of a file in TOML.

    Args:
        path: names it in the error.
        text: the content.

    Raises:
        InputError: it is not TOML; with line and text.
    """
    try:
        read: dict[str, object] = importlib.import_module(_TOML_READER).loads(text)
    except RecursionError:
        raise InputError(
            "the file has too many brackets inside each other",
            where=path,
            fix="write lists of words, and tables of settings: none needs more than three levels",
        ) from None
    except ValueError as error:  # TOMLDecodeError
        raise _syntax_error(path, text, str(error)) from None
    return read


def _refuse_by_name(path: str) -> None:
    if path.endswith(".py"):
        raise _script_error(path)
    if path.endswith(_OTHER_FORMATS):
        fix = "write it as TOML, one field a line: nodes = 2 (hpc-elastic help job-file)"
        raise InputError(f"{path} is no TOML, by its name, and job files are TOML", where=path, fix=fix)


def _has_options(text: str) -> bool:
    return any(line.startswith("#SBATCH") for line in text.splitlines())


def _script_error(path: str, text: str = "") -> InputError:
    fix = f"write it after --: -- {for_shell(path)}"
    if path.endswith(_FOR_SBATCH) or _has_options(text):
        fix = f"begin it with #!/bin/bash, and it runs as it is: hpc-elastic submit {for_shell(path)}"
    return InputError(f"{path} is a script and not a job file", where=path, fix=fix)


def _unread_fix(path: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return absence_fix(path, "") or access_fix(path, "r")
    return "check the path"


def _missing_fix(path: str) -> str:
    directory, name = os.path.split(path)
    try:
        return options.near_file(name, os.listdir(directory or ".")) or "check the path"
    except OSError:
        return "check the path"


def _syntax_error(path: str, text: str, message: str) -> InputError:
    match = re.search(r" ?\(at line (\d+), column (\d+)\)", message)
    lines = text.splitlines()
    if match is None:  # at end of document
        number, column, reason = len(lines), None, message
    else:
        number, column, reason = int(match[1]), int(match[2]), message[: match.start()]
    shown = lines[number - 1] if 0 < number <= len(lines) else ""
    if reason == _GIVEN_TWICE:
        key = shown.partition("=")[0].strip(" []")
        what = f"{key} is given a second time\n    {shown}"
        return InputError(what, where=f"{path}:{number}", fix=f"keep one of the lines with {key}")
    arrow = "\n    " + " " * (column - 1) + "^" if column else ""
    return InputError(
        f"not valid TOML: {reason}\n    {shown}{arrow}", where=f"{path}:{number}", fix="correct the line"
    )


def line_of(text: str, key: str, table: str = "") -> int | None:
    """Return the number of the line that sets a key; of the table that holds it if the key is not found.

    Args:
        text: of a file in TOML.
        key: a setting, or with a dot the entry of one that is a table.
        table: the table of the file in which it is looked for; empty: the top level.
    """
    top, _, name = key.partition(".")
    below = f"{table}.{top}" if table else top
    places = [(below, name), (table, f"{top}.{name}")] if name else []
    found = next(filter(None, (_find(text, *place) for place in [*places, (table, top)])), None)
    headers = [f"{below}.{name}"] if name else []
    found = found or next(filter(None, (_find_table(text, each) for each in [*headers, below])), None)
    return found or (line_of(text, table) if table else None)


def _find(text: str, table: str, name: str) -> int | None:
    wanted = _plain(name)
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = _plain(header[1])
            continue
        match = re.match(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=", line)
        if match and current == table and _plain(match[1]) == wanted:
            return number
    return None


def _find_table(text: str, table: str) -> int | None:
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header and _plain(header[1]) == table:
            return number
    return None


def _plain(name: str) -> str:
    """Return a TOML key without quotes and blanks."""
    return re.sub(r"[\"'\s]", "", name)


class FileSettings(NamedTuple):
    """The settings that files give to a job.

    Attributes:
        files: those files and tables of them, of which each goes before those ahead of it.
        taken: long names of options of sbatch that something above the files gives to this job.
        left_out: settings that are not for this job.
    """

    files: tuple[JobFile, ...] = ()
    taken: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()


NO_SETTINGS = FileSettings()


def build_spec(file: JobFile, given: Mapping[str, object], settings: FileSettings = NO_SETTINGS) -> JobSpec:
    """Build a job spec from settings files, a job file and options of the command line; the last one wins.

    Tables, as `sbatch` and `env`, are merged key by key.

    Args:
        file: the job file; an empty one if there is none.
        given: fields given as options.
        settings: of settings files.

    Raises:
        InputError: a value cannot be used; the place is the option or the line of the file.
    """
    with _placing(file, given, settings):
        given, of_file = _with_tables(given), _with_tables(file.values)
        values = _laid_over(of_file, given)
        if isinstance(table := values.get("sbatch"), Mapping):
            values["sbatch"] = _without_overridden(table, given)
    values = over_settings(settings, values)
    with _placing(file, given, settings):
        return JobSpec(**values)


@contextmanager
def _placing(file: JobFile, given: Mapping[str, object], settings: FileSettings) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise placed(error, file, given, settings) from None


def spec_over(settings: FileSettings, fields: Mapping[str, object]) -> JobSpec:
    """Build a job spec from settings files and fields that a program gives, which win.

    Raises:
        InputError: a value cannot be used; the place is the field or the line of the file.
    """
    values = over_settings(settings, _with_tables(fields))
    try:
        return JobSpec(**values)
    except InputError as error:
        is_own = bool(_as_written(error.where, fields))
        raise (error if is_own else _placed_in(error, settings.files) or error) from None


def over_settings(settings: FileSettings, above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job with those that settings files add to them.

    A setting of a file gives way to one that asks for the same in another way, as `mem` to `mem_per_cpu`.

    Args:
        settings: of settings files.
        above: the fields of the job itself; their tables have been read.

    Raises:
        InputError: a setting of a file cannot be used; the place is its line.
    """
    found: dict[str, Any] = {}
    for file in settings.files:
        try:
            fields = read_fields(file.values)
        except InputError as error:
            raise _placed_in(error, [file]) or error from None
        found = _laid_over(_beside(found, _options_of(fields)), fields)
    used = {name: value for name, value in found.items() if name not in settings.left_out}
    asked = _options_of(above) | dict.fromkeys(settings.taken, True)
    values = _laid_over(_beside(used, asked), above)
    return {name: value for name, value in values.items() if name in above or _has_use(name, values)}


def _options_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sbatch that fields stand for, by their long names."""
    table = fields.get("sbatch")
    found = (
        {options.option_name(key): value for key, value in table.items()}
        if isinstance(table, Mapping)
        else {}
    )
    return found | {option: fields[name] for name, option in options.OPTION_OF.items() if name in fields}


def _beside(fields: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that stand for no option that is asked for in the same or in another way."""
    gone = options.rivals(name for name, value in asked.items() if value not in (None, False)) | asked.keys()
    kept = {name: value for name, value in fields.items() if options.OPTION_OF.get(name) not in gone}
    if isinstance(table := kept.get("sbatch"), Mapping):
        kept["sbatch"] = {key: value for key, value in table.items() if options.option_name(key) not in gone}
    if "no-requeue" in gone:
        kept.pop("max_requeues", None)
    return kept


def _has_use(name: str, values: Mapping[str, Any]) -> bool:
    """Tell whether a setting of a file goes with the others of the job, without which it is refused."""
    is_array, is_program = values.get("mode") == "array", values.get("module") != CALL
    needs = {
        **dict.fromkeys(OF_ENVIRONMENTS, is_program),  # a function runs in the Python that has made it
        "spares": is_array,
        "chain": not is_array,
        "chain_by": "chain" in values and not is_array,
        "mounts": bool(values.get("container")),
        "container_runtime": is_image_alone(values.get("container")),
    }
    return needs.get(name, True)


def _with_tables(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields whose tables have been read."""
    read = {name: read_value(row, fields[name]) for name, row in _TABLES.items() if name in fields}
    return {**fields, **read}


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields over others; their tables are merged, and one Python of the workers replaces another."""
    below = without_other_python(below, above)
    both = [name for name in _TABLES if name in below and name in above]
    return {**below, **above, **{name: _merged(name, below[name], above[name]) for name in both}}


def _merged(table: str, below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    if table != "sbatch":
        return {**below, **above}
    overridden = {options.option_name(key) for key in above}
    return {
        **{key: value for key, value in below.items() if options.option_name(key) not in overridden},
        **above,
    }


def _without_overridden(table: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Drop the entry of the file's sbatch table about a field that was given as an option."""
    from_options = given.get("sbatch")
    kept = from_options if isinstance(from_options, Mapping) else {}
    return {
        key: value
        for key, value in table.items()
        if key in kept or options.FIELDS.get(options.option_name(key)) not in given
    }


def placed(
    error: InputError, file: JobFile, given: Mapping[str, object], settings: FileSettings = NO_SETTINGS
) -> InputError:
    """Return an error about a field with the place where the user wrote it: an option, or a line of a file.

    Args:
        error: its place is the name of a field (``nodes``, ``sbatch.mem``).
        file: the job file; an empty one if there is none.
        given: fields given as options.
        settings: of settings files.
    """
    kind = type(error)
    key = _as_written(error.where, given)
    if key:
        return kind(error.message, where=_flag(key), fix=error.fix)
    if found := _placed_in(error, [*settings.files, file]):
        return found
    return kind(error.message, where=file.path or _flag(error.where), fix=error.fix)


def _placed_in(error: InputError, files: Sequence[JobFile]) -> InputError | None:
    """Return an error with the line of the last file that sets its field; None if none does."""
    for file in reversed(files):
        key = _as_written(error.where, file.values)
        if key and file.path:
            line = file.line(key)
            shown = f"\n    {line}" if line else ""
            return type(error)(f"{error.message}{shown}", where=file.place(key), fix=error.fix)
    return None


def places_of(name: str, files: Sequence[JobFile]) -> list[str]:
    """Return the lines that set a field or an entry of its table, that of the last file first."""
    keys = [(file, _as_written(name, file.values)) for file in reversed(files)]
    return [file.place(key) for file, key in keys if key]


def _as_written(key: str, values: Mapping[str, object]) -> str:
    """Return a key as it was written in these values, nothing if they do not set it.

    A field may have been set by the sbatch option of the same meaning, and an option has several names.
    """
    top, _, below = key.partition(".")
    if top in values and (not below or top not in _TABLES):
        return key
    table = values.get(top if below else "sbatch")
    for name in table if isinstance(table, Mapping) else ():
        option = options.option_name(name)
        if (
            name == below
            or (top == "sbatch" and option == below)
            or (not below and options.FIELDS.get(option) == top)
        ):
            return f"{top if below else 'sbatch'}.{name}"
    return ""


def _flag(key: str) -> str:
    top, _, below = key.partition(".")
    if top == "command":
        return "command"
    row = _TABLES.get(top)
    flag = row.written.short if row else ""
    return f"{flag or '--' + top.replace('_', '-')} {below}".rstrip()
