"""The options that describe a job, the same for every command that takes one.

They are made from the table of settings, so that a field, its option and its help cannot differ.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Optional

import typer

from hpc_elastic.cli.job_help import HelpAll
from hpc_elastic.cli.parameters import offered
from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import LINES, NAMES, OPTIONS, VARIABLES, Setting
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, placed, read_job_file
from hpc_elastic.slurm.job.spec import JobSpec

_OPTIONS = tuple(row for name, row in JOB.items() if name != "command")  # which stands behind --
_PAIRS = (OPTIONS, VARIABLES)
_REPEATED = (*_PAIRS, NAMES, LINES)

_HELP_ALL = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)

JobFileArgument = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time on Python 3.10 too
    typer.Argument(
        metavar="[JOB_FILE] [-- COMMAND...]",
        help="Job file (TOML); options win over its values.",
        show_default=False,
    ),
]


def with_job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the job options added; they arrive in its parameter `given`.

    Args:
        command: takes `given`, the fields that were given as options, and parameters of its own.
    """
    own = inspect.signature(command, eval_str=True)
    parameters = [parameter for parameter in own.parameters.values() if parameter.name != "given"]
    job = {row.name: _parameter(row) for row in _OPTIONS}

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> Any:
        del arguments[_HELP_ALL.name]
        given = {field: arguments.pop(field) for field in job}
        return command(given=given_fields(given), **arguments)

    everything = [*parameters, _HELP_ALL, *job.values()]
    wrapper.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in everything}
    del wrapper.__wrapped__
    return wrapper


def _parameter(row: Setting) -> inspect.Parameter:
    names = [f"{row.flag}/--no-{row.flag[2:]}"] if row.is_switch else [row.flag]
    kind: Any = bool if row.is_switch else list[str] if row.kind in _REPEATED else str
    option = typer.Option(
        *names,
        *filter(None, [row.written.short]),
        help=f"{row.help_text()} Repeat for more." if row.kind in _REPEATED else row.help_text(),
        metavar=row.metavar or None,
        autocompletion=offered(lambda: row.kind.choices) if row.kind.choices else None,
        rich_help_panel=row.panel,
        show_default=False,
    )
    return inspect.Parameter(
        row.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[kind], option],  # noqa: UP045
    )


def given_fields(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the options that were given as fields of a job spec.

    Raises:
        InputError: a NAME=VALUE option has no name.
    """
    given: dict[str, object] = {}
    for field, value in arguments.items():
        if value is None or value == []:
            continue
        given[field] = _pairs(JOB[field], value) if JOB[field].kind in _PAIRS else value
    return given


def _pairs(row: Setting, texts: list[str]) -> dict[str, object]:
    flag = row.written.short
    pairs: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (row.kind is VARIABLES and not equals):
            raise InputError(f"{text!r} is not NAME=VALUE", where=flag, fix=f"write {flag} NAME=VALUE")
        if name in pairs:
            raise InputError(f"{name} is given twice", where=flag, fix="keep one of them")
        pairs[name] = value if equals else True
    return pairs


class WantedJob(NamedTuple):
    """A job as the user wants it.

    Attributes:
        spec: of the job.
        warnings: of the job file, if other users may have written it.
        is_python_own: whether the user alone has named the interpreter.
    """

    spec: JobSpec
    warnings: list[str]
    is_python_own: bool


@contextlib.contextmanager
def wanted_job(
    job_file: str | None, given: Mapping[str, object], command: tuple[str, ...]
) -> Iterator[WantedJob]:
    """Give the job for a job file, options and the worker command after ``--``.

    An error in a field inside of the `with` block names the option or the line of the file.

    Raises:
        InputError: naming the option or the line of the file.
    """
    file = read_job_file(job_file) if job_file else JobFile()
    words: dict[str, object] = {"command": command} if command else {}
    everything = {**given, **words}
    spec = build_spec(file, everything)
    try:
        yield WantedJob(spec, file.warnings, "python" in given or not file.others)
    except InputError as error:
        top = error.where.partition(".")[0]
        raise placed(error, file, everything) if top in JOB else error from None
