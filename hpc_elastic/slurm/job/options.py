"""The options of sbatch: which exist, which take a value, which this package must set itself. Pure.

An option with a flag and a key of its own is a row of `hpc_elastic.settings.table`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from hpc_elastic.errors import InputError
from hpc_elastic.settings.setting import Sbatch
from hpc_elastic.settings.table import JOB
from hpc_elastic.settings.values import OptionValue, has_control, shown

_FLAGS_TEXT = (
    "contiguous hold ignore-pbs overcommit oversubscribe quiet reboot spread-job stepmgr use-min-nodes "
    "verbose consolidate-segments spread-segments external"
)
FLAGS = frozenset(_FLAGS_TEXT.split())
_MAY_HAVE_VALUE_TEXT = "exclusive get-user-env nice propagate resv-ports"
MAY_HAVE_VALUE = frozenset(_MAY_HAVE_VALUE_TEXT.split())
_WITH_VALUE_TEXT = (
    "account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint "
    "container container-id container-type core-spec cores-per-socket cpu-freq cpus-per-gpu "
    "cpus-per-task deadline delay-boot dependency distribution error exclude export export-file extra "
    "extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres "
    "gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem "
    "mem-bind mem-per-cpu mem-per-gpu mem-update mincpus network nodefile nodelist nodes ntasks "
    "ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step open-mode output "
    "partition power prefer priority profile qos reservation resources segment signal sockets-per-node "
    "switches thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes "
    "wckey wrap"
)
WITH_VALUE = frozenset(_WITH_VALUE_TEXT.split())
_OTHER_FLAGS_TEXT = "no-kill no-requeue parsable requeue test-only wait help usage version"
_SHORT_ONES_TEXT = (  # of src/slurmctld/job_mgr.c
    "account constraint extra job-name licenses mail-user mcs-label network partition prefer qos "
    "reservation wckey"
)
_SHORT_ONES = frozenset(_SHORT_ONES_TEXT.split())
_MOST_BYTES = 1024  # of the value of each of them
OTHER_FLAGS = frozenset(_OTHER_FLAGS_TEXT.split())
BUILT_IN = FLAGS | MAY_HAVE_VALUE | WITH_VALUE | OTHER_FLAGS

SHORT = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task",
    "C": "constraint", "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus",
    "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution",
    "M": "clusters", "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition",
    "q": "qos", "Q": "quiet", "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose",
    "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip

FIELDS = {row.to.option: row.name for row in JOB.values() if isinstance(row.to, Sbatch)}
"""The fields of the job spec that mean the same as an option of sbatch."""

OPTION_OF = {**{name: option for option, name in FIELDS.items()}, "cpus_per_node": "cpus-per-task"}
"""The option of sbatch that each field stands for."""

_ONE_AGENT = "Slurm starts exactly one agent per node, and the agent starts the workers"
_RESTARTS = "a run goes on over requeues, so the batch script sets it itself"
_WORKERS = "set workers_per_node (default: the GPUs per node)"
_LOGS = "read the logs with 'hpc-elastic logs RUN_DIR'; the batch log is RUN_DIR/slurm-<job id>.out"
_ENV = "give variables in env (the rest of your environment is passed on unless inherit_env is false)"
_NOT_A_JOB = "it does not describe the job"

# sbatch option -> (reason of the refusal, option to use instead)
OWNED = {
    "requeue": (
        _RESTARTS,
        "leave it out; limit the requeues with max_requeues; expedite asks for --requeue=expedite",
    ),
    "no-requeue": (_RESTARTS, "set max_requeues = 0 for a run that must never be requeued"),
    "no-kill": ("survivors of a lost node must go on, so the batch script sets it itself", "leave it out"),
    "open-mode": (_RESTARTS, "leave it out; logs are always appended to"),
    "signal": ("the warning before the time limit starts the drain", "set checkpoint_lead (and warn_signal)"),
    "output": ("logs live in the run directory", _LOGS),
    "error": ("logs live in the run directory", _LOGS),
    "input": ("agents have no standard input", "read a file in the training script"),
    "ntasks": (_ONE_AGENT, _WORKERS),
    "ntasks-per-node": (f"{_ONE_AGENT}; Slurm 22.05 also makes the minimum of a node range of it", _WORKERS),
    "ntasks-per-core": (_ONE_AGENT, _WORKERS),
    "ntasks-per-socket": (_ONE_AGENT, _WORKERS),
    "ntasks-per-gpu": (_ONE_AGENT, _WORKERS),
    "gpus-per-task": (f"{_ONE_AGENT}, so one task would hold the GPUs of one worker", "set gpus_per_node"),
    "tres-per-task": (_ONE_AGENT, "set gpus_per_node and cpus_per_node"),
    "gpus-per-socket": (_ONE_AGENT, "set gpus_per_node"),
    "export": ("sbatch splits its value at commas", _ENV),
    "export-file": ("the environment is written into the job script", _ENV),
    "array": (
        "one run is one job, or in array mode an array that the run sizes itself",
        'submit once per run, each with its own run_dir; for a run of one-node tasks: mode = "array"',
    ),
    "external": ("an external job has no script", "leave it out"),
    "wrap": ("the job script is generated", "give the command after --"),
    "parsable": (_NOT_A_JOB, "leave it out"),
    "test-only": (_NOT_A_JOB, "use --dry-run"),
    "wait": (_NOT_A_JOB, "follow the run with 'hpc-elastic logs -f RUN_DIR'"),
    "quiet": (_NOT_A_JOB, "leave it out"),
    "verbose": (_NOT_A_JOB, "leave it out"),
    "help": (_NOT_A_JOB, "run sbatch --help"),
    "usage": (_NOT_A_JOB, "run sbatch --usage"),
    "version": (_NOT_A_JOB, "run sbatch --version"),
}

# options of plug-ins of sbatch, which a cluster may lack -> their counterparts here
BY_PLUGINS = {
    "container-image": "agents stay outside of the image: --container IMAGE, which Enroot runs",
    "container-mounts": "write --mounts DIR,...",
    "container-name": "agents stay outside of the image: --container IMAGE, which Enroot runs",
    "container-workdir": "write --workdir DIR",
}

# each pair asks for the same thing in two ways
_CONTRADICTIONS = (
    ("mem", "mem-per-cpu"),
    ("mem", "mem-per-gpu"),
    ("mem-per-cpu", "mem-per-gpu"),
    ("cpus-per-task", "cpus-per-gpu"),
    ("exclusive", "oversubscribe"),
    ("gpus-per-node", "gpus"),
    ("nodelist", "nodefile"),
)
_BOTH_GPUS = ("gpus-per-node", "gres")  # gres may ask for other things than GPUs


def option_name(key: str) -> str:
    """Return the long sbatch name of an option as people write it (``-p``, ``mem_per_cpu``)."""
    name = key.strip().lstrip("-")
    return SHORT.get(name, name.replace("_", "-"))


def name_in_full(name: str) -> str:
    """Return the long name of an option of sbatch, which takes the begin of one, too."""
    longer = [known for known in BUILT_IN if known.startswith(name)]
    return longer[0] if name not in BUILT_IN and len(longer) == 1 else name


def near(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'a' or 'b'?`` for the known words like this one, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(match) for match in found)}?" if found else ""


def near_file(name: str, names: Iterable[str]) -> str:
    """Return `near` for file names; the same ending alone makes no two names alike."""
    stem = name.rpartition(".")[0] or name
    alike = [other for other in names if near(stem, [other.rpartition(".")[0] or other])]
    return near(name, alike)


def check_known(names: Collection[str], known: Collection[str] | None) -> None:
    """Refuse options that sbatch does not have.

    Args:
        names: long names.
        known: the options of the installed Slurm; None where there is none to ask.

    Raises:
        InputError: one of them does not exist.
    """
    source = (
        "sbatch of this machine"
        if known
        else "the options of Slurm 22.05 to 26.05; sbatch could not be asked"
    )
    for name in names:
        if name not in (known or BUILT_IN):
            fix = BY_PLUGINS.get(name) or near(name, known or BUILT_IN) or "look it up with sbatch --help"
            raise InputError(
                f"sbatch has no option --{name} (asked: {source})", where=f"sbatch.{name}", fix=fix
            )


def check_owned(names: Iterable[str]) -> None:
    """Refuse options that the protocol of a run must set itself.

    Raises:
        InputError: one of them was given.
    """
    for name in names:
        if name in OWNED:
            why, instead = OWNED[name]
            raise InputError(
                f"the sbatch option --{name} cannot be given: {why}", where=f"sbatch.{name}", fix=instead
            )


def check_size(name: str, value: OptionValue, where: str) -> None:
    """Refuse a value that is longer than Slurm takes; its own error speaks of a path name then.

    Args:
        name: the long name of the option.
        value: of it.
        where: the key the user wrote.

    Raises:
        InputError: it is too long.
    """
    size = len(str(value).encode("utf-8", "surrogateescape"))
    if name in _SHORT_ONES and size > _MOST_BYTES:
        raise InputError(
            f"{where} = {shown(value)} has {size:,} bytes, and Slurm takes {_MOST_BYTES:,}",
            where=where,
            fix="shorten it",
        )


def check_contradictions(given: dict[str, str]) -> None:
    """Refuse options that ask for the same thing in two ways.

    Args:
        given: long sbatch name -> the key the user wrote.

    Raises:
        InputError: two of them contradict each other.
    """
    for first, second in _CONTRADICTIONS:
        if first in given and second in given:
            raise InputError(
                f"{given[first]} and {given[second]} contradict each other: Slurm takes only one of them",
                where=given[second],
                fix=f"remove {given[first]} or {given[second]}",
            )


def rivals(asked: Iterable[str]) -> set[str]:
    """Return the options that ask in another way for the same as some of these.

    Args:
        asked: long names.
    """
    names = set(asked)
    pairs = [*_CONTRADICTIONS, _BOTH_GPUS]
    both_ways = [*pairs, *[(second, first) for first, second in pairs]]
    return {other for one, other in both_ways if one in names}


def check_value(name: str, value: OptionValue) -> None:
    """Refuse a flag with a value, an option without one, and text that a header line cannot carry.

    Raises:
        InputError: the value does not suit the option.
    """
    where = f"sbatch.{name}"
    if name in FLAGS and not isinstance(value, bool):
        fix = f"write -o {name}, in a job file {name} = true"
        raise InputError(f"--{name} takes no value, but got {value!r}", where=where, fix=fix)
    if name in WITH_VALUE and isinstance(value, bool):
        fix = f"write -o {name}=VALUE, in a job file {name} = VALUE"
        raise InputError(f"--{name} needs a value", where=where, fix=fix)
    if isinstance(value, str) and has_control(value):
        raise InputError(
            f"the value {value!r} of --{name} holds a line break or control character, "
            "which a #SBATCH line cannot carry",
            where=where,
            fix="remove it",
        )


def hint_for_key(key: str) -> str:
    """Return how an option of sbatch is given that was written as a setting; empty if it is none."""
    name = option_name(key)
    if name in OWNED:
        why, instead = OWNED[name]
        return f"the sbatch option --{name} cannot be given ({why}); {instead}"
    if name in FIELDS:
        return f"write {FIELDS[name]}"
    return (
        f"write it in the table sbatch: sbatch = {{ {name} = ... }} (-o {name}=...)"
        if name in BUILT_IN
        else ""
    )


def header_line(name: str, value: OptionValue | None) -> str:
    """Return one option for a ``#SBATCH`` line, quoted as sbatch reads it.

    sbatch knows quotes and the backslash (inside quotes too), and `#` outside quotes ends the line.
    """
    return f"--{name}" if value is None or value is True else f"--{name}={header_word(str(value))}"


def header_word(text: str) -> str:
    """Return one word for a ``#SBATCH`` line, quoted as sbatch reads it."""
    if re.fullmatch(r"[\w@%+=:,./\[\]*|&{}()!~^;<>?-]+", text, re.ASCII):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
