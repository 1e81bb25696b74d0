"""The options that describe a job, the same for every command that takes one.

They are made from the fields of the job spec, so that a field, its option and its help cannot differ.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Optional

import typer

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, placed, read_job_file
from hpc_elastic.slurm.job.spec import JobSpec

_PANELS: Mapping[str, tuple[str, ...]] = {
    "What to run": (
        "module", "python", "workers_per_node", "container", "workdir", "env", "inherit_env", "tracker_ids",
        "modules", "setup",
    ),
    "Where it runs (Slurm)": (
        "nodes", "mode", "spares", "gpus_per_node", "cpus_per_node", "cpus_per_task", "mem", "mem_per_cpu",
        "time", "partition", "account", "qos", "constraint", "exclusive", "reservation", "nodelist",
        "exclude", "name", "dependency", "mail_type", "mail_user", "comment", "sbatch",
    ),
    "Run directory and logs": (
        "run_dir", "allow_local_run_dir", "redirects", "tee", "local_ranks_filter", "keep_logs",
    ),
    "Time to save": (
        "checkpoint_lead", "stop_timeout", "critical_timeout", "unasked", "watch_node_drain", "warn_signal",
        "drain_signals", "warning_signals",
    ),
    "Failures and hangs": (
        "max_restarts", "same_failure", "max_hangs", "hang_timeout", "first_step_timeout",
    ),
    "Requeues": (
        "max_requeues", "max_node_losses", "max_preemptions", "max_time_limits", "max_launch_failures",
        "max_starts_without_save", "on_budget_spent", "resubmit", "chain", "chain_by",
    ),
    "Bad nodes": (
        "health_check", "health_command", "health_timeout", "probe_min_space", "probe_min_inodes",
        "gpu_devices", "exclude_suspects", "ledger",
    ),
    "Timeouts of the agents": (
        "join_timeout", "last_call_timeout", "exit_barrier_timeout", "heartbeat_interval", "lease",
        "monitor_interval", "role",
    ),
}  # fmt: skip
_SHORT = {
    "nodes": "-N", "time": "-t", "partition": "-p", "account": "-A", "qos": "-q", "name": "-J",
    "constraint": "-C", "nodelist": "-w", "exclude": "-x", "module": "-m", "sbatch": "-o", "env": "-e",
    "dependency": "-d",
}  # fmt: skip
_METAVAR = {
    "nodes": "N|MIN:MAX", "mode": "step|array", "time": "TIME", "sbatch": "NAME=VALUE",
    "env": "NAME=VALUE", "run_dir": "DIR",
    "workdir": "DIR", "setup": "LINE", "modules": "NAME", "module": "MODULE", "python": "PATH",
    "ledger": "DIR", "on_budget_spent": "hold|fail", "chain_by": "singleton|afterany",
    "health_command": "COMMAND", "probe_min_space": "SIZE", "gpu_devices": "PATTERN",
    "health_check": "off|quick|full", "warn_signal": "USR1|USR2",
    "drain_signals": "SIG,...", "warning_signals": "SIG,...", "local_ranks_filter": "R,R",
    "redirects": "N", "tee": "N", "keep_logs": "ROUNDS",
    "unasked": "term|run-on|signal:NAME",
    "hang_timeout": "TIME|auto|off", "first_step_timeout": "TIME|auto|off",
    "container": "PREFIX", "mem": "SIZE", "mem_per_cpu": "SIZE", "gpus_per_node": "N|TYPE:N",
}  # fmt: skip
_NUMBERS = (
    "workers_per_node", "spares", "cpus_per_node", "cpus_per_task", "probe_min_inodes", "max_restarts",
    "max_hangs", "same_failure", "max_requeues", "max_node_losses", "max_preemptions", "max_time_limits",
    "max_launch_failures", "max_starts_without_save", "chain",
)  # fmt: skip
_TIMES = (
    "health_timeout",
    "checkpoint_lead", "stop_timeout", "critical_timeout", "join_timeout", "last_call_timeout",
    "exit_barrier_timeout",
    "heartbeat_interval", "lease", "monitor_interval",
)  # fmt: skip
_REPEATED = ("sbatch", "env", "modules", "setup")
_PAIRS = ("sbatch", "env")

JobFileArgument = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time on Python 3.10 too
    typer.Argument(
        metavar="[JOB_FILE] [-- COMMAND...]",
        help="Job file (TOML); options win over what it says.",
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
    job = {field: _parameter(field, panel) for panel, fields in _PANELS.items() for field in fields}

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> Any:
        given = {field: arguments.pop(field) for field in job}
        return command(given=given_fields(given), **arguments)

    everything = [*parameters, *job.values()]
    wrapper.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in everything}
    del wrapper.__wrapped__
    return wrapper


def _parameter(field: str, panel: str) -> inspect.Parameter:
    info = JobSpec.model_fields[field]
    flag = "--" + field.replace("_", "-")
    names = [flag, *([_SHORT[field]] if field in _SHORT else [])]
    kind: Any = str
    if info.annotation is bool:
        names = [f"{flag}/--no-{flag[2:]}"]
        kind = bool
    elif field in _REPEATED:
        kind = list[str]
    by_kind = "N" if field in _NUMBERS else "TIME" if field in _TIMES else "TEXT"
    option = typer.Option(
        *names,
        help=_help(field),
        metavar=None if kind is bool else _METAVAR.get(field, by_kind),
        rich_help_panel=panel,
        show_default=False,
    )
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[kind], option],  # noqa: UP045
    )


def _help(field: str) -> str:
    text = JobSpec.model_fields[field].description or ""
    return f"{text} Repeat for more." if field in _REPEATED else text


def given_fields(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the options that were given as fields of a job spec.

    Raises:
        InputError: a NAME=VALUE option has no name.
    """
    given: dict[str, object] = {}
    for field, value in arguments.items():
        if value is None or value == []:
            continue
        given[field] = _pairs(field, value) if field in _PAIRS else value
    return given


def _pairs(field: str, texts: list[str]) -> dict[str, object]:
    flag = _SHORT[field]
    pairs: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (field == "env" and not equals):
            raise InputError(f"{text!r} is not NAME=VALUE", where=flag, fix=f"write {flag} NAME=VALUE")
        if name in pairs:
            raise InputError(f"{name} is given twice", where=flag, fix="keep one of them")
        pairs[name] = value if equals else True
    return pairs


@contextlib.contextmanager
def job_spec(
    job_file: str | None, given: Mapping[str, object], command: tuple[str, ...]
) -> Iterator[JobSpec]:
    """Give the job spec for a job file, options and the worker command after ``--``.

    What is found wrong with a field inside of the `with` block names the option or the line of the file.

    Raises:
        InputError: naming the option or the line of the file.
    """
    file = read_job_file(job_file) if job_file else JobFile()
    words: dict[str, object] = {"command": command} if command else {}
    everything = {**given, **words}
    spec = build_spec(file, everything)
    try:
        yield spec
    except InputError as error:
        top = error.where.partition(".")[0]
        raise placed(error, file, everything) if top in JobSpec.model_fields else error from None
