"""The text of the job script. Pure: the same spec and names give the same text."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Iterable

from hpc_elastic.ids import Env
from hpc_elastic.isolated.argv import CALL, INSTALLED, OwnPath, call_argv, own_argv
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.of_commands import FinishSettings
from hpc_elastic.settings.setting import flags_given, usual
from hpc_elastic.settings.table import OF_AGENT, OF_FINISH, JobSettings
from hpc_elastic.settings.values import has_control, is_control, number_text
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.environment import has_own_python, python_of, runs_python
from hpc_elastic.slurm.job.own_script import OwnScript, sbatch_line
from hpc_elastic.slurm.job.spec import JobSpec, checkpoint_lead_s, heartbeat_and_lease_s, warning_time_s

MAX_RELAUNCH = usual(FinishSettings.max_relaunch)
_HEALTH_S = usual(JobSettings.health_timeout)  # for a look at a node
_PROGRAMS = 2  # that an agent runs one after the other to look at its node, each for so long at most
_SLOW_START_S = 600.0  # Python from a busy file system
_SILENT_S = 120.0  # without a sign of life from any agent
_LEASES = 3  # or so many leases, where that is longer
_WIDTH = 110  # of a line of the script
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e", "'": "\\'", "\\": "\\\\"}


class RunNames(NamedTuple):
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
        own_script: where the copy of a job script of the user's own is.
        importable: the directory that has this package alone, for the workers' Python.
        imports: the packages that the workers' Python is asked for.
        venv: absolute path of the virtual environment of the workers.
        is_python_given: the user has named the Python of agents and workers.
    """

    run_id: str
    run_dir: str
    workdir: str
    python: str
    batch_log: str
    epilog: str
    where: OwnPath = INSTALLED
    elastic: tuple[str, ...] = ()
    own_script: str = ""
    importable: str = ""
    imports: tuple[str, ...] = ()
    venv: str = ""
    is_python_given: bool = False


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


def own_command(spec: JobSpec, own: OwnScript, copy: str) -> tuple[str, ...]:
    """Return the command of a job script of the user's own, as the kernel would make it.

    Args:
        spec: the job; the words behind the script are its arguments.
        own: the script.
        copy: the copy of it that runs.
    """
    return (*own.interpreter, copy, *spec.command[1:])


def worker_command(spec: JobSpec, python: str, where: OwnPath = INSTALLED) -> tuple[str, ...]:
    """Return the complete command of a worker, without the container prefix.

    Args:
        spec: the job.
        python: that of the agents.
        where: the places that it has to search for this package.
    """
    if spec.module == CALL:
        return call_argv(python, where)
    python = python_of(spec, python)
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
    script = ("--script",) if spec.mode == "script" else ()
    return (*script, f"--max-relaunch={MAX_RELAUNCH}", *flags_given(OF_FINISH, spec.values))


def _may_have_gpus(spec: JobSpec) -> bool:
    """Whether the agents must count the GPUs: they were asked for in a way that does not tell per node."""
    return spec.exclusive or bool({"gres", "gpus", "exclusive"} & set(spec.sbatch))


def header(spec: JobSpec, names: RunNames) -> tuple[str, ...]:
    """Return the ``#SBATCH`` options: those of the user, then those that the protocol needs."""
    lines = [options.header_line(name, value) for name, value in spec.header_options()]
    if spec.mode == "script":
        lines += [options.header_line("chdir", spec.workdir)] if spec.workdir else []
        lines += [sbatch_line(spec.sbatch_options)] if spec.sbatch_options else []
    else:
        lines.append(options.header_line("chdir", names.workdir))
        lines.append(options.header_line("output", names.batch_log))
    if not spec.inherit_env:
        lines.append("--export=NONE")
    return tuple(lines)


class Template(NamedTuple):
    """The job script of a mode: texts with ``{{ name }}`` for values, and the functions that it calls."""

    own: str
    """The script, with places for `base` and `agents`."""
    base: str
    """The lines that all modes have."""
    agents: str
    """The lines before agents are started, with a place for `setup`."""
    setup: str
    """The lines around those that a job runs once per start."""
    functions: str
    """The text of ``batch.sh``, which the script reads in the run directory."""


def render(spec: JobSpec, names: RunNames, template: Template, own: OwnScript | None = None) -> str:
    """Return the job script.

    Args:
        spec: the job.
        names: the names it carries.
        template: that of the spec's mode.
        own: the job script of the user's own that it runs, in that mode.
    """
    parts = {
        "base": template.base,
        "agents": template.agents,
        "setup": template.setup if spec.modules or spec.setup or has_own_python(spec) else "",
    }
    text = template.own
    for name, part in parts.items():
        text = text.replace(f"{{{{ {name} }}}}\n", part)
    if own is None:
        agent, command = agent_flags(spec), worker_command(spec, names.python, names.where)
    else:
        agent, command = (), own_command(spec, own, names.own_script)
    return _filled(
        text,
        header="\n".join(f"#SBATCH {option}" for option in header(spec, names)),
        last_task=spec.tasks - 1,
        requeue="requeue" if spec.requeues else "no-requeue",
        warn_signal=spec.warn_signal,
        warn_seconds=warning_time_s(spec),
        run_dir=quote(names.run_dir),
        run_id=quote(names.run_id),
        elastic=_array("_he_elastic", names.elastic or own_argv(names.python, where=names.where)),
        agent=_array("_he_agent", agent),
        worker=_array("_he_worker", command),
        own_name=options.header_word("" if own is None else own.name),
        own_head="" if own is None else "\n".join((*own.components[0], *own.lines_of_others)),
        own_components="" if own is None else "\n".join(own.components[1]),
        own_checksum="" if own is None else hashlib.sha256(own.data).hexdigest(),
        finish=_array("_he_finish", finish_flags(spec), '--run-dir="$HPC_ELASTIC_RUN_DIR"'),
        checksum=checksum(template.functions),
        workdir=quote(names.workdir),
        env="".join(f"\nexport {name}={quote(value)}" for name, value in _variables(spec)),
        modules="\n".join(_modules_lines(spec, names)),
        environment=_environment_line(spec, names),
        lines="\n".join(spec.setup),
        python=_python_line(spec, names),
        epilog=quote(names.epilog),
        relaunches=" ".join(map(str, range(MAX_RELAUNCH + 1))),
        silent_s=_silent_s(spec),
        silent_start_s=_silent_s(spec) + _start_s(spec),
    )


def _variables(spec: JobSpec) -> list[tuple[str, str]]:
    """Return the variables that the script sets, with those that agents hand to workers alone."""
    return [*spec.env.items(), *((f"{Env.OF_WORKERS}{name}", text) for name, text in spec.worker_env.items())]


def _modules_lines(spec: JobSpec, names: RunNames) -> list[str]:
    """Return the lines that load modules, and take the Python that they bring for that of the workers."""
    if not spec.modules:
        return []
    found = ['eval "$_he_find_modules"', f"module load {' '.join(map(quote, spec.modules))}"]
    is_open = runs_python(spec) and not names.is_python_given and not has_own_python(spec)
    return [*found, f"take_python {quote(names.importable)}"] if is_open else found


def _environment_line(spec: JobSpec, names: RunNames) -> str:
    """Return the line that makes the environment of the workers that of the script."""
    if spec.conda:
        return f"use_conda {quote(spec.conda)}"
    return f"use_venv {quote(names.venv)}" if names.venv else ""


def _python_line(spec: JobSpec, names: RunNames) -> str:
    """Return the line that looks at the workers' Python after the setup lines; empty where none is needed."""
    if has_own_python(spec):
        if spec.container:  # its Python is seen when a worker starts
            return f"share_package {quote(names.importable)}"
        return " ".join(map(quote, ("check_python", names.importable, *names.imports)))
    return "tell_python" if spec.setup and runs_python(spec) and not names.is_python_given else ""


def _filled(text: str, **values: object) -> str:
    """Return a text with the values of its names; a line with an empty value alone is left out."""

    def value(found: re.Match[str]) -> str:
        whole_line, word = found.groups()
        filled = str(values[whole_line or word])
        return f"{filled}\n" if whole_line and filled else filled

    return re.sub(r"^\{\{ (\w+) \}\}\n|\{\{ (\w+) \}\}", value, text, flags=re.MULTILINE)


def checksum(functions: str) -> str:
    """Return the SHA-256 of the text of ``batch.sh``, as the script compares it."""
    return hashlib.sha256(functions.encode("utf-8", "surrogateescape")).hexdigest()


def _array(name: str, words: Iterable[str], *quoted: str) -> str:
    """Return the assignment of a bash array, with as many words on a line as fit.

    Args:
        name: of the array.
        words: its elements.
        quoted: those before them, as in a script.
    """
    lines = [""]
    for word in (*quoted, *map(quote, words)):
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


def batch_log_pattern(path: str, mode: str = "step") -> str:
    """Return a path with ``%j`` at its end as a Slurm file name pattern: other ``%`` are doubled.

    In array mode each task has a log of its own.
    """
    head, mark, tail = path.rpartition("%j")
    return head.replace("%", "%%") + ("%A_%a" if mode == "array" else mark) + tail
