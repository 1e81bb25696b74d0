"""The job spec: one description of a run, the same from the command line, TOML and Python.

Its fields are the rows of `hpc_elastic.settings.table`, read as the kind of each says. Here are the rules of
fields that contradict each other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NoReturn

from hpc_elastic.errors import InputError
from hpc_elastic.settings.setting import FinishFlag, Sbatch, Setting, usual
from hpc_elastic.settings.table import JOB, JobSettings
from hpc_elastic.settings.values import (
    BadValueError,
    NodeRange,
    OptionValue,
    number_text,
    parse_nodes,
    parse_time_limit_s,
    slurm_time_text,
)
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.deadlines import WARNING_JITTER_S
from hpc_elastic.slurm.job import options
from hpc_elastic.slurm.job.environment import check_environment

DEFAULT_LEAD_S = usual(JobSettings.checkpoint_lead)
_HEARTBEAT_S = usual(JobSettings.heartbeat_interval)
_LEASE_S = usual(JobSettings.lease)
MAX_SIGNAL_S = 65535  # sbatch --signal
SIGNALS = ("TERM", "USR1", "USR2", "INT", "HUP")
_AGENT_VARIABLES_TEXT = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
    "ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT "
    "TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_ERROR_FILE TORCHELASTIC_USE_AGENT_STORE HPC_ELASTIC_RUN_DIR "
    "HPC_ELASTIC_RUN_ID HPC_ELASTIC_SUBMISSION HPC_ELASTIC_RELAUNCH HPC_ELASTIC_MODE HPC_ELASTIC_ROUND "
    "HPC_ELASTIC_NODE HPC_ELASTIC_CHANNEL HPC_ELASTIC_CHECKPOINT"
)
AGENT_VARIABLES = frozenset(_AGENT_VARIABLES_TEXT.split())
# sbatch option -> why it means nothing for a job of one node
_ONE_NODE = {
    "contiguous": "each task is a job of one node",
    "nodefile": "each task would have to get all nodes of the file",
    "spread-job": "each task is a job of one node",
    "switches": "Slurm places each task by itself",
    "use-min-nodes": "each task is a job of one node",
}


class JobSpec(JobSettings):
    """The program of a job, and the resources that it runs on; it does not change.

    Durations are seconds or text with a unit (``90s``, ``2m``); `time` is minutes or text, as in Slurm.

    Raises:
        InputError: a field is unknown, cannot be read, or contradicts another one; `where` is its name.
    """

    _given: frozenset[str]

    def __init__(self, **fields: Any) -> None:
        read = read_fields(fields)
        defaults = {name: row.default for name, row in JOB.items() if name not in read}
        vars(self).update(copy.deepcopy(defaults), **read, _given=frozenset(read))
        check_spec(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a job spec does not change: {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobSpec) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JobSpec({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    @property
    def values(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in JOB}

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        return {name: value for name, value in self.values.items() if name in self._given}

    @property
    def stored(self) -> dict[str, Any]:
        """The fields that are not their defaults, as the record of a run has them."""
        return {name: value for name, value in self.values.items() if value != JOB[name].default}

    def replaced(self, **fields: Any) -> JobSpec:
        """Return the same job with other values, which are not checked."""
        made = copy.copy(self)
        vars(made).update(fields, _given=self._given | frozenset(fields))
        return made

    @property
    def node_range(self) -> NodeRange:
        """The least and the most nodes of the run."""
        return parse_nodes(self.nodes)

    @property
    def tasks(self) -> int:
        """How many tasks the array of the run has in array mode."""
        return self.node_range.high + (self.spares or 0)

    @property
    def requeues(self) -> bool:
        """Whether Slurm may start the job again."""
        return not self.chain and self.max_requeues != 0

    @property
    def time_limit_s(self) -> int | None:
        """The time limit [s]; None if there is none or the partition decides."""
        return None if self.time is None else parse_time_limit_s(self.time)

    @property
    def cpus(self) -> int | None:
        """The CPUs on each node, None if not asked for."""
        return self.cpus_per_node or self.cpus_per_task

    @property
    def gpus(self) -> int | None:
        """The GPUs on each node, None if not asked for by `gpus_per_node`."""
        return None if self.gpus_per_node is None else int(str(self.gpus_per_node).rpartition(":")[2])

    def header_options(self) -> list[tuple[str, OptionValue]]:
        """Return the sbatch options the user asked for, named fields first, in a fixed order.

        Those of a job script of the user's own that are not given stand in its lines.
        """
        otherwise: dict[str, OptionValue | None] = {
            "name": self.name or None,
            "time": None if self.time is None else slurm_time_text(self.time_limit_s),
            "nodes": self._nodes_text,
            "cpus_per_task": self.cpus,
            "exclusive": True if self.exclusive else None,
            "workdir": None,  # an absolute path, which the script's names tell
            "comment": None,  # with the submission's token
        }
        named = {
            option: otherwise[name] if name in otherwise else getattr(self, name)
            for option, name in options.FIELDS.items()
        }
        given: list[tuple[str, OptionValue]] = []
        given += [(name, value) for name, value in named.items() if value is not None]
        return given + [(name, value) for name, value in self.sbatch.items() if value is not False]

    @property
    def _nodes_text(self) -> str | None:
        if self.mode == "script" and "nodes" not in self._given:
            return None
        return "1" if self.mode == "array" else self.node_range.slurm_text

    def option_names(self) -> tuple[str, ...]:
        """Return the long names of the options given in `sbatch`."""
        return tuple(options.option_name(name) for name in self.sbatch)


def read_fields(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of settings for those as they were written; options of sbatch by their settings.

    Raises:
        InputError: a setting is unknown, or cannot be read; names it, or the entry of its table.
    """
    folded = _folded(dict(fields))
    for name, value in folded.items():
        if name not in JOB:
            raise _unknown(name, value)
    return {name: read_value(row, folded[name]) for name, row in JOB.items() if name in folded}


def read_value(row: Setting, written: object) -> Any:
    """Return the value of a setting for one as it was written; None where that is its default.

    Raises:
        InputError: naming the setting, or the entry of its table.
    """
    if written is None and row.default is None:
        return None
    try:
        return row.kind.parse(written)
    except BadValueError as error:
        place = f"{row.name}.{error.key}" if error.key else row.name
        example = f", e.g. {place} = {error.example}" if error.example else ""
        raise InputError(f"{place} = {error.message}", where=place, fix=error.fix + example) from None


def _folded(fields: dict[str, Any]) -> dict[str, Any]:
    """Move sbatch options that have a field of their own into that field.

    Raises:
        InputError: an option was given both ways, is owned by the protocol, or has a wrong value.
    """
    if "sbatch" not in fields:
        return fields
    folded, rest = dict(fields), {}
    for key, value in read_value(JOB["sbatch"], fields["sbatch"]).items():
        name = options.option_name(key)
        field = options.FIELDS.get(name)
        options.check_owned([name])
        if name in rest:
            raise InputError(
                f"--{name} is given twice in sbatch", where=f"sbatch.{key}", fix="keep one of them"
            )
        is_of_field = name != "exclusive" or isinstance(value, bool)  # --exclusive=user has none
        if field is None or not is_of_field:
            options.check_value(name, value)
            rest[name] = value
            continue
        if field in fields:
            raise InputError(
                f"--{name} is given twice: {field} = {fields[field]!r} and sbatch {key} = {value!r}",
                where=f"sbatch.{key}",
                fix=f"keep {field}",
            )
        folded[field] = value
    return {**folded, "sbatch": rest}


def _unknown(name: str, value: object) -> InputError:
    """Return the error about a setting that there is not, with those that are near."""
    of_profiles = "a profile stands in a settings file, as a table [profiles.NAME], which may have extends"
    if isinstance(value, Mapping):
        is_meant = name in ("profile", "profiles")
        fix = of_profiles if is_meant else f"settings stand at the top level, without [{name}]"
        return InputError(f"there is no table [{name}]", where=name, fix=fix)
    if name == "extends":
        return InputError(f"there is no setting '{name}' of a job", where=name, fix=of_profiles)
    same = [field for field in JOB if field == name.replace("-", "_")]
    fix = options.near(name, same) or options.hint_for_key(name) or options.near(name, JOB)
    fix = fix or options.near(name, (*JOB, *options.FIELDS, *options.BUILT_IN))
    return InputError(f"there is no setting '{name}'", where=name, fix=fix or "see hpc-elastic submit --help")


def check_spec(spec: JobSpec) -> None:
    """Refuse a spec whose fields contradict each other.

    Raises:
        InputError: naming both fields and the one to remove.
    """
    _check_command(spec)
    _check_script(spec)
    check_environment(spec)
    _check_requests(spec)
    _check_variables(spec)
    _check_times(spec)
    _check_run_dir(spec)
    _check_requeues(spec)
    check_array(spec)


def _check_requeues(spec: JobSpec) -> None:
    if spec.chain is not None and spec.mode == "array":
        raise InputError(
            "chain is for one job of all nodes, and mode = 'array'",
            where="chain",
            fix="leave it out: Slurm requeues each task by itself",
        )
    if spec.chain is not None and spec.max_requeues is not None and spec.max_requeues < spec.chain - 1:
        raise InputError(
            f"chain = {spec.chain}, and max_requeues = {spec.max_requeues}: jobs after the first count",
            where="max_requeues",
            fix=f"{spec.chain - 1} or more, or leave it out",
        )
    if spec.chain_by is not None and spec.chain is None:
        raise InputError(
            f"chain_by = {spec.chain_by!r}, and there is no chain",
            where="chain_by",
            fix="say how many jobs: chain = 5",
        )


_OF_SCRIPTS = (
    "command mode sbatch sbatch_options python inherit_env cpus_per_node run_dir allow_local_run_dir "
    "expedite chain_by exclude_suspects ledger"
)


def _check_script(spec: JobSpec) -> None:
    """Refuse settings of agents and workers for a job script of the user's own, which starts none of ours."""
    if spec.mode != "script":
        if spec.sbatch_options:
            raise InputError(
                "sbatch_options are for a job script of your own",
                where="sbatch_options",
                fix="write them by their names, e.g. --partition gpu or -o NAME=VALUE",
            )
        return
    for name in sorted(spec.given):
        row = JOB[name]
        if isinstance(row.to, Sbatch | FinishFlag) or name in _OF_SCRIPTS.split():
            continue
        if getattr(spec, name) != row.default:
            raise InputError(
                f"{name} is for agents and workers of hpc_elastic, and {spec.command[0]} runs as it is",
                where=name,
                fix="leave it out; the script has to do it itself",
            )


def _check_command(spec: JobSpec) -> None:
    if not spec.command and not spec.module:
        raise InputError(
            "there is no worker command",
            where="command",
            fix="give it after --, e.g. -- train.py --lr 0.1; or name a job file or a job script",
        )
    if spec.command and not spec.command[0]:
        raise InputError("the worker command is an empty word", where="command", fix="name a program")
    program = spec.command[0].rpartition("/")[2] if spec.command else ""
    if spec.module and (program.startswith("python") or program.endswith(".py")):
        raise InputError(
            f"module = {spec.module!r} and command = {' '.join(spec.command)!r} both name the program to run",
            where="module",
            fix="keep one; with module, command holds the module's arguments only",
        )
    if spec.python == "":
        raise InputError("python is empty", where="python", fix="name an interpreter or leave it out")


def _check_requests(spec: JobSpec) -> None:
    if spec.cpus_per_node and spec.cpus_per_task:
        raise InputError(
            f"cpus_per_node = {spec.cpus_per_node} and cpus_per_task = {spec.cpus_per_task} mean the same",
            where="cpus_per_task",
            fix="keep cpus_per_node",
        )
    given = {name: _key_of(name, spec) for name, _ in spec.header_options()}
    options.check_contradictions(given)
    for name, value in spec.header_options():
        options.check_size(name, value, given[name])
    if spec.gpus_per_node is not None and "gpu" in str(spec.sbatch.get("gres", "")):
        raise InputError(
            f"gpus_per_node = {spec.gpus_per_node} and gres = {spec.sbatch['gres']!r} both ask for GPUs",
            where="sbatch.gres",
            fix="keep gpus_per_node",
        )
    is_empty = not spec.name.strip() and "name" in spec.given
    if is_empty or spec.name in (".", ".."):
        raise InputError(f"{spec.name!r} cannot be a job name", where="name", fix="use letters and digits")


def _key_of(name: str, spec: JobSpec) -> str:
    if name in spec.sbatch:
        return f"sbatch.{name}"
    if name == "cpus-per-task" and spec.cpus_per_node:
        return "cpus_per_node"
    return options.FIELDS[name]


def _check_variables(spec: JobSpec) -> None:
    for field, table in (("env", spec.env), ("worker_env", spec.worker_env)):
        for name in table:
            if name in AGENT_VARIABLES:
                raise InputError(
                    f"the environment variable {name} is set by the agent for each worker",
                    where=f"{field}.{name}",
                    fix="remove it",
                )
    _check_signals(spec)


def _check_signals(spec: JobSpec) -> None:
    for field, names in (("drain_signals", spec.drain_signals), ("warning_signals", spec.warning_signals)):
        for name in names:
            if name.removeprefix("SIG") not in SIGNALS:
                raise InputError(
                    f"{name!r} in {field} cannot be used",
                    where=field,
                    fix=f"use some of {', '.join(SIGNALS)}",
                )
    if spec.warning_signals and spec.warn_signal not in spec.warning_signals:
        raise InputError(
            f"warn_signal = {spec.warn_signal!r} is not among warning_signals = {list(spec.warning_signals)}",
            where="warning_signals",
            fix=f"add {spec.warn_signal}",
        )
    both = set(spec.drain_signals) & set(spec.warning_signals or (spec.warn_signal,))
    if both:
        raise InputError(
            f"{min(both)} is in drain_signals and means a warning too",
            where="drain_signals",
            fix=f"remove {min(both)}",
        )


def _check_times(spec: JobSpec) -> None:
    _check_lead(spec)
    heartbeat_s, lease_s = heartbeat_and_lease_s(spec)
    if lease_s < 3 * heartbeat_s:
        raise InputError(
            f"lease = {number_text(lease_s)} s is less than three heartbeats of {number_text(heartbeat_s)} s",
            where="heartbeat_interval" if spec.lease is None else "lease",
            fix=f"set lease to {number_text(3 * heartbeat_s)} or more",
        )


def heartbeat_and_lease_s(spec: JobSpec) -> tuple[float, float]:
    """Return the heartbeat interval and the lease that the agents of a job will be given [s]."""
    return (
        _HEARTBEAT_S if spec.heartbeat_interval is None else spec.heartbeat_interval,
        _LEASE_S if spec.lease is None else spec.lease,
    )


def _check_lead(spec: JobSpec) -> None:
    if spec.checkpoint_lead is None:
        return
    lead, warning_s, limit_s = number_text(spec.checkpoint_lead), warning_time_s(spec), spec.time_limit_s
    if warning_s > MAX_SIGNAL_S:
        raise InputError(
            f"checkpoint_lead = {lead} s is more than Slurm's warning can carry",
            where="checkpoint_lead",
            fix=f"use at most {MAX_SIGNAL_S - int(WARNING_JITTER_S)} s",
        )
    if limit_s is not None and warning_s >= limit_s:
        raise InputError(
            f"checkpoint_lead = {lead} s (warned {warning_s} s ahead, as Slurm's timer needs "
            f"{int(WARNING_JITTER_S)} s) leaves nothing of time = {spec.time}",
            where="checkpoint_lead",
            fix="raise time or lower checkpoint_lead",
        )


def _check_run_dir(spec: JobSpec) -> None:
    if spec.run_dir is not None and (not spec.run_dir or "\\" in spec.run_dir):
        raise InputError(
            f"run_dir = {spec.run_dir!r} cannot be used: "
            + ("Slurm cannot expand file name patterns with a backslash" if spec.run_dir else "it is empty"),
            where="run_dir",
            fix="choose another path",
        )


def checkpoint_lead_s(spec: JobSpec) -> float:
    """Return how long stopping and saving may take [s]; shorter by default in short jobs."""
    if spec.checkpoint_lead is not None:
        return spec.checkpoint_lead
    if spec.time_limit_s is None:
        return DEFAULT_LEAD_S
    return float(int(max(0.0, min(DEFAULT_LEAD_S, (spec.time_limit_s - WARNING_JITTER_S) / 2))))


def warning_time_s(spec: JobSpec, lead_s: float | None = None) -> int:
    """Return how long before the time limit Slurm warns [s].

    Args:
        spec: the job.
        lead_s: how long stopping and saving may take [s]; None: as in the spec.
    """
    return int((checkpoint_lead_s(spec) if lead_s is None else lead_s) + WARNING_JITTER_S + 0.999)


def spec_warnings(spec: JobSpec) -> list[str]:
    """Return the settings that are allowed but probably not meant."""
    if spec.mode == "script":  # its own lines may ask for them
        return []
    found = []
    asks_cpus = spec.cpus or spec.exclusive or {"cpus-per-gpu", "exclusive", "mincpus"} & set(spec.sbatch)
    if not asks_cpus:
        found.append(
            "no CPUs are asked for, so Slurm gives one core per node and all workers share it\n"
            "  fix: add --cpus-per-node N or --exclusive"
        )
    if spec.time is None:
        found.append(
            "no time limit is given, so the partition's default holds\n  fix: add --time, e.g. --time 4h"
        )
    return [*found, *_short_time(spec)]


def _short_time(spec: JobSpec) -> list[str]:
    """Tell of a time limit of which little is left for training, as in a first try."""
    limit_s, warned_s = spec.time_limit_s, warning_time_s(spec)
    least_s = max(0, (limit_s or 0) - warned_s - int(WARNING_JITTER_S))
    if limit_s is None or 3 * least_s >= limit_s:
        return []
    told = (
        f"time = {spec.time} leaves {least_s} to {limit_s - warned_s} s of each start for training: "
        f"agents are warned {warned_s} s before the limit, or up to {WARNING_JITTER_S:g} s sooner"
    )
    return [f"{told}\n  fix: raise time, or set --checkpoint-lead to the time of a save"]


def check_array(spec: JobSpec) -> None:
    """Refuse fields that contradict the mode.

    Raises:
        InputError: naming the field and the fix.
    """
    if spec.mode != "array":
        if spec.spares is not None:
            raise InputError(
                f"spares = {spec.spares} is for array mode; this run is one job",
                where="spares",
                fix='set mode = "array", or ask for more nodes with --nodes MIN:MAX and use fewer with scale',
            )
        return
    _check_dependency(spec)
    _check_nodelist(spec)
    for name, why in _ONE_NODE.items():
        if spec.sbatch.get(name) not in (None, False):
            raise InputError(
                f"--{name} has no meaning in array mode: {why}",
                where=f"sbatch.{name}",
                fix='remove it, or set mode = "step"',
            )


def _check_dependency(spec: JobSpec) -> None:
    if "singleton" in (spec.dependency or ""):
        raise InputError(
            f"dependency = {spec.dependency!r} in array mode: Slurm would run one task at a time, "
            "as all of them have the same name",
            where="dependency",
            fix="wait for a job by its id, e.g. afterany:1234",
        )


def _check_nodelist(spec: JobSpec) -> None:
    names = parse.expand(spec.nodelist) if spec.nodelist else ()
    if len(names) > 1:
        raise InputError(
            f"nodelist = {spec.nodelist!r} in array mode: each task would have to get all {len(names)} nodes",
            where="nodelist",
            fix='choose nodes by constraint, partition or exclude, or set mode = "step"',
        )


def refuse_local(spec: JobSpec) -> None:
    """Refuse to play an array on one machine without Slurm.

    Raises:
        InputError: the run is one.
    """
    if spec.mode == "script":
        raise InputError(
            f"{spec.name or spec.command[0]} runs as it is, on nodes that Slurm gives it",
            where="--local",
            fix="leave it out, or run the script itself here",
        )
    if spec.mode == "array":
        raise InputError(
            'mode = "array" needs Slurm: tasks that are queued and requeued one by one are not played here',
            where="--local",
            fix="leave the mode out: --local N plays the nodes of one job, with the same agents",
        )
