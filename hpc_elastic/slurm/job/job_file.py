"""Job files (TOML): reading one, and laying command-line options over it; errors name file and line."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import TABLES
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.spec import JobSpec, read_value
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
    """

    path: str = ""
    values: Mapping[str, object] = {}
    text: str = ""
    owner: str = ""
    others: str = ""

    @property
    def warnings(self) -> list[str]:
        """The owner, where that is another user."""
        if not self.owner:
            return []
        what = f"{self.path} belongs to user {self.owner}: its command, setup and python run as you"
        return [f"{what}\n  fix: read it, or copy it to a file of your own"]

    def place(self, key: str) -> str:
        """Return ``file:line`` of a key (``nodes``, ``sbatch.mem``), or the file if it cannot be found."""
        number = line_of(self.text, key)
        return f"{self.path}:{number}" if number else self.path

    def line(self, key: str) -> str:
        """Return the offending line as it stands in the file, or nothing."""
        number = line_of(self.text, key)
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
        raise InputError(f"the job file {path} does not exist", where=path, fix=_missing_fix(path)) from None
    except OSError as error:
        raise InputError(
            f"the job file cannot be read: {error.strerror}", where=path, fix=_unread_fix(path, error)
        ) from None
    if path.endswith((".sh", *_FOR_SBATCH)):
        raise _script_error(path, text)
    try:
        return JobFile(path, importlib.import_module(_TOML_READER).loads(text), text, owner, others)
    except RecursionError:
        raise InputError(
            "the job file has too many brackets inside each other",
            where=path,
            fix="write lists of words, and tables of settings: none needs more than three levels",
        ) from None
    except ValueError as error:  # TOMLDecodeError
        if text.startswith("#!") or _has_options(text):  # also comments of TOML
            raise _script_error(path, text) from None
        raise _syntax_error(path, text, str(error)) from None


def _refuse_by_name(path: str) -> None:
    if path.endswith(".py"):
        raise _script_error(path)
    if path.endswith(_OTHER_FORMATS):
        fix = "write it as TOML, one field a line: nodes = 2 (docs/reference/job-file.md)"
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


def line_of(text: str, key: str) -> int | None:
    """Return the number of the line that sets a key; of the table that holds it if the key is not found."""
    table, _, name = key.partition(".")
    if not name:
        return _find(text, "", table) or _find_table(text, table)
    return (
        _find(text, table, name)
        or _find(text, "", f"{table}.{name}")
        or _find(text, "", table)
        or _find_table(text, table)
    )


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


def build_spec(file: JobFile, given: Mapping[str, object]) -> JobSpec:
    """Build a job spec from a job file and options of the command line, which win.

    Tables, as `sbatch` and `env`, are merged key by key.

    Args:
        file: the job file; an empty one if there is none.
        given: fields given as options.

    Raises:
        InputError: a value cannot be used; the place is the option or the line of the file.
    """
    try:
        tables = {name: read_value(row, given[name]) for name, row in _TABLES.items() if name in given}
        given = {**given, **tables}
        values: dict[str, object] = {**file.values, **given}
        for name, above in tables.items():
            below = file.values.get(name)
            if isinstance(below, Mapping):
                values[name] = _merged(name, below, above)
        if isinstance(table := values.get("sbatch"), Mapping):
            values["sbatch"] = _without_overridden(table, given)
        return JobSpec(**values)
    except InputError as error:
        raise placed(error, file, given) from None


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


def placed(error: InputError, file: JobFile, given: Mapping[str, object]) -> InputError:
    """Return an error about a field with the place where the user wrote it: an option, or a line of the file.

    Args:
        error: its place is the name of a field (``nodes``, ``sbatch.mem``).
        file: the job file; an empty one if there is none.
        given: fields given as options.
    """
    kind = type(error)
    key = _as_written(error.where, given)
    if key:
        return kind(error.message, where=_flag(key), fix=error.fix)
    key = _as_written(error.where, file.values)
    if key and (line := file.line(key)):
        return kind(f"{error.message}\n    {line}", where=file.place(key), fix=error.fix)
    return kind(error.message, where=file.path or _flag(error.where), fix=error.fix)


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
