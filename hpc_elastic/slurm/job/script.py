"""The text of the job script. Pure: the same spec and names give the same text."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import jinja2

from hpc_elastic.isolated.argv import CALL, INSTALLED, OwnPath, call_argv, own_argv
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.of_commands import FinishSettings
from hpc_elastic.settings.setting import flags_given, usual
from hpc_elastic.settings.table import OF_AGENT, OF_FINISH, JobSettings
from hpc_elastic.settings.values import has_control, is_control, number_text
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.spec import JobSpec, checkpoint_lead_s, heartbeat_and_lease_s, warning_time_s

BASE = "base.sbatch"  # the name that the other templates extend
MAX_RELAUNCH = usual(FinishSettings.max_relaunch)
_HEALTH_S = usual(JobSettings.health_timeout)  # for a look at a node
_PROGRAMS = 2  # that an agent runs one after the other to look at its node, each for so long at most
_SLOW_START_S = 600.0  # Python from a busy file system
_SILENT_S = 120.0  # without a sign of life from any agent
_LEASES = 3  # or so many leases, where that is longer
_WIDTH = 110  # of a line of the script
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e", "'": "\\'", "\\": "\\\\"}


@dataclass(frozen=True, slots=True)
class RunNames:
    """The names a script carries.

    Args:
        run_id: the name of the run.
        run_dir: absolute path of the run directory.
        workdir: absolute path of the directory the workers start in.
        python: interpreter of the agents.
        batch_log: Slurm file name pattern of the batch script's output.
        epilog: the installed ``batch.sh``, which Slurm runs on each node after its agent.
        where: the places that interpreter has to search for this package, apart from its usual ones.
        elastic: the words that start a command of this package, if those of `where` do not.
    """

    run_id: str
    run_dir: str
    workdir: str
    python: str
    batch_log: str
    epilog: str
    where: OwnPath = INSTALLED
    elastic: tuple[str, ...] = ()


def quote(text: str) -> str:
    """Quote one word for bash; control characters are written out, so that a word stays on its line.

    A plain carriage return in a script would make sbatch refuse it.
    """
    if not has_control(text):
        is_plain_inside = "'" in text and not set(text) & set('"$`\\!')
        return f'"{text}"' if is_plain_inside else shlex.quote(text)  # noqa: TID251 - a line of a script
    return "$'" + "".join(_ansi_c(char) for char in text) + "'"


def _ansi_c(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\{ord(char):03o}" if is_control(char) else char


def worker_command(spec: JobSpec, python: str, where: OwnPath = INSTALLED) -> tuple[str, ...]:
    """Return the complete command of a worker, without the container prefix."""
    if spec.module == CALL:
        return call_argv(python, where)
    if spec.module:
        return (python, "-u", "-m", spec.module, *spec.command)
    if spec.command[0].endswith(".py"):
        return (python, "-u", *spec.command)
    return spec.command


def agent_flags(spec: JobSpec) -> tuple[str, ...]:
    """Return the flags of ``hpc-elastic run`` that the spec sets, without the run directory."""
    workers = spec.workers_per_node or spec.gpus or (None if _may_have_gpus(spec) else 1)
    computed = {
        "nnodes": spec.node_range,
        "nproc-per-node": workers,
        "warn-timeout": number_text(checkpoint_lead_s(spec)),
    }
    first = (f"--{name}={value}" for name, value in computed.items() if value is not None)
    return (*first, *flags_given(OF_AGENT, spec.values), "--no-python")


def finish_flags(spec: JobSpec) -> tuple[str, ...]:
    """Return the flags of ``hpc-elastic finish`` that the spec sets."""
    return (f"--max-relaunch={MAX_RELAUNCH}", *flags_given(OF_FINISH, spec.values))


def _may_have_gpus(spec: JobSpec) -> bool:
    """Whether the agents must count the GPUs: they were asked for in a way that does not tell per node."""
    return spec.exclusive or bool({"gres", "gpus", "exclusive"} & set(spec.sbatch))


def header(spec: JobSpec, names: RunNames) -> tuple[str, ...]:
    """Return the ``#SBATCH`` options: those of the user, then those that the protocol needs."""
    lines = [options.header_line(name, value) for name, value in spec.header_options()]
    lines.append(options.header_line("chdir", names.workdir))
    lines.append(options.header_line("output", names.batch_log))
    if not spec.inherit_env:
        lines.append("--export=NONE")
    return tuple(lines)


class Template(NamedTuple):
    """The job script of a mode: two Jinja templates, and the functions that the script calls."""

    own: str
    """What the mode has of its own; it extends `BASE`."""
    base: str
    """What all modes have."""
    functions: str
    """The text of ``batch.sh``, which the script reads in the run directory."""


def render(spec: JobSpec, names: RunNames, template: Template) -> str:
    """Return the job script.

    Args:
        spec: the job.
        names: the names it carries.
        template: that of the spec's mode.
    """
    return _compiled(template).render(
        header=header(spec, names),
        warn_signal=spec.warn_signal,
        warn_seconds=warning_time_s(spec),
        names=names,
        env=spec.env,
        modules=spec.modules,
        setup=spec.setup,
        agent=_quoted(agent_flags(spec)),
        elastic=_quoted(names.elastic or own_argv(names.python, where=names.where)),
        worker=_quoted(worker_command(spec, names.python, names.where)),
        tasks=spec.tasks,
        max_relaunch=MAX_RELAUNCH,
        finish=('--run-dir="$HPC_ELASTIC_RUN_DIR"', *_quoted(finish_flags(spec))),
        requeues=spec.requeues,
        checksum=checksum(template.functions),
        silent_s=_silent_s(spec),
        silent_start_s=_silent_s(spec) + _start_s(spec),
    )


def checksum(functions: str) -> str:
    """Return the SHA-256 of the text of ``batch.sh``, as the script compares it."""
    return hashlib.sha256(functions.encode("utf-8", "surrogateescape")).hexdigest()


def _quoted(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(quote(word) for word in words)


def array(name: str, words: Iterable[str]) -> str:
    """Return the assignment of a bash array, with as many words on a line as fit.

    Args:
        name: of the array.
        words: its elements, quoted.
    """
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and len(longer) > _WIDTH:
            lines.append(word)
        else:
            lines[-1] = longer
    inside = f"{name}=({lines[0]})"
    if len(lines) == 1 and len(inside) <= _WIDTH:
        return inside
    return "\n".join((f"{name}=(", *(f"  {line}" for line in lines), ")"))


def _silent_s(spec: JobSpec) -> int:
    """Return for how long [s] no agent gives a sign of life before it is concluded that none is left."""
    _, lease_s = heartbeat_and_lease_s(spec)
    return math.ceil(max(_SILENT_S, _LEASES * lease_s))


def _start_s(spec: JobSpec) -> int:
    """Return how much longer that is while agents have told no names: they start slowly, or look at nodes."""
    health_s = _HEALTH_S if spec.health_timeout is None else spec.health_timeout
    return math.ceil(_SLOW_START_S + _PROGRAMS * health_s)


@cache
def _compiled(template: Template) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({BASE: template.base}),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the text is a shell script; every value goes through `quote`
    )
    environment.filters["quote"] = quote
    environment.globals["array"] = array
    return environment.from_string(template.own)


def batch_log_pattern(path: str, mode: str = "step") -> str:
    """Return a path with ``%j`` at its end as a Slurm file name pattern: other ``%`` are doubled.

    In array mode each task has a log of its own.
    """
    head, mark, tail = path.rpartition("%j")
    return head.replace("%", "%%") + ("%A_%a" if mode == "array" else mark) + tail
