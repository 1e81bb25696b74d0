"""The settings that only a command line has: of ``run``, most of them torchrun's, or of ``finish``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hpc_elastic.ids import SHUTDOWN_S
from hpc_elastic.settings.setting import (
    ANY_PATH,
    BUDGET,
    NUMBER,
    RAW,
    SECONDS,
    SWITCH,
    TEXT,
    TEXTS,
    Agent,
    FinishFlag,
    ForAgents,
    Written,
    choice,
    rows_of,
    setting,
)
from hpc_elastic.settings.table import OF_AGENT, OF_FINISH, OFF, JobSettings

_FILTERED = "Teed lines with one of these texts also go to filtered_{}.log; ,, is a comma"
_FLAG = Agent(None)


# fmt: off
class OfTorchrun:
    """Settings of torchrun that a job does not have."""

    nnodes = setting(
        TEXT, None, "Nodes", to=_FLAG,
        written=Written(metavar="N|MIN:MAX", default="1; under Slurm those of the step"),
    )
    nproc_per_node = setting(
        TEXT, None, "Workers per node; auto: one per GPU, else one per CPU", to=_FLAG,
        written=Written(metavar="N|auto|gpu|cpu", default="1; under Slurm one per GPU"),
    )
    standalone = setting(
        SWITCH, OFF, "One node by itself; other --rdzv flags and --nnodes are not looked at", to=Agent()
    )
    rdzv_backend = setting(
        TEXT, "static", "The names static, c10d, etcd, etcd-v2, shared_fs: all meet in a directory; with "
        "c10d and etcd --master-addr and --master-port are not used, as in torchrun", to=Agent(),
        written=Written(metavar="NAME"),
    )
    rdzv_endpoint = setting(
        TEXT, "", "Directory below which runs live; of a host only the name is used", to=Agent(),
        written=Written(metavar="DIR|HOST:PORT"),
    )
    rdzv_id = setting(TEXT, "none", "Id of the run", to=Agent(), written=Written(metavar="ID"))
    rdzv_conf = setting(
        TEXT, "", "Times of the rendezvous: join_timeout, last_call_timeout, keep_alive_interval, "
        "keep_alive_max_attempt, lease; torch's others are accepted and not needed", to=Agent(),
        written=Written(metavar="K=V,..."),
    )
    node_rank = setting(
        NUMBER, None, "Place of this node, with any backend; Slurm's order goes first", to=_FLAG,
        written=Written(default="by host name"),
    )
    master_addr = setting(
        TEXT, None, "Fixed MASTER_ADDR of the workers", to=_FLAG,
        written=Written(metavar="ADDR", default="rank 0's node"),
    )
    master_port = setting(
        NUMBER, None, "Fixed MASTER_PORT", to=_FLAG,
        written=Written(metavar="PORT", default="a free one per round"),
    )
    local_addr = setting(
        TEXT, None, "Address of this node for the others", to=_FLAG,
        written=Written(metavar="ADDR", default="its name"),
    )
    module = setting(SWITCH, OFF, "The script is a Python module, as in python -m", to=Agent(short="-m"))
    no_python = setting(SWITCH, OFF, "The script is a program of its own", to=Agent())
    run_path = setting(
        SWITCH, OFF, "Run the script in fresh interpreters by runpy; an exception leaves its traceback",
        to=Agent(),
    )
    start_method = setting(
        choice("spawn", "fork", "forkserver"), "spawn", "How interpreters of --run-path start", to=Agent()
    )
    numa_binding = setting(
        choice("node", "socket", "exclusive", "core-complex"), None, "Bind workers to the CPUs near their "
        "GPU", to=_FLAG, written=Written(default="no binding"),
    )
    virtual_local_rank = setting(
        SWITCH, OFF, "LOCAL_RANK is 0 for all; each worker sees its GPU alone, as device 0", to=Agent()
    )
    log_dir = setting(
        ANY_PATH, None, "Logs in DIR/<run>/attempt_<round>/<rank>", to=_FLAG,
        written=Written(default="logs/ in the run directory"),
    )
    duplicate_stdout_filters = setting(TEXTS, (), _FILTERED.format("stdout"), to=Agent(()))
    duplicate_stderr_filters = setting(TEXTS, (), _FILTERED.format("stderr"), to=Agent(()))
    logs_specs = setting(
        TEXT, None, "Log specs of an installed package, entry point group torchrun.logs_specs", to=_FLAG,
        written=Written(metavar="NAME", default="ours"),
    )
    signals_to_handle = setting(
        TEXT, None, "Signals that end the run in order; one of the default that is left out kills the "
        "agent, and its workers with it", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", Agent(is_unset=True),
        Written(metavar="SIG,..."),
    )
    shutdown_timeout = setting(
        SECONDS, None, "From SIGTERM to SIGKILL of workers", float(SHUTDOWN_S), Agent(is_unset=True),
        Written(default=f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else {SHUTDOWN_S}"),
    )
    event_log_handler = setting(TEXT, "null", "Where events go", to=Agent(), written=Written(metavar="NAME"))


class BeyondTorchrun:
    """Settings that neither torchrun nor a job has."""

    run_dir = setting(
        ANY_PATH, None, "The run directory, on a file system all nodes share", to=_FLAG,
        written=Written(default="see below"),
    )
    log_line_prefix_template = setting(
        RAW, None, "Text before teed lines; knows ${rank}, ${local_rank}, ${role_name}, ${node}, "
        "${hostname}", to=_FLAG,
        written=Written(default="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else '[rank ${rank}] '"),
    )
    warn_timeout = setting(SECONDS, 90.0, "Time to save after a warning", to=Agent())

# fmt: on


class RunSettings(OfTorchrun, BeyondTorchrun):
    """The settings that only a command line of ``run`` has, each as a value of its type."""


_ROWS = {**{row.name: row for row in OF_AGENT}, **rows_of(OfTorchrun, BeyondTorchrun)}
_TORCHRUN = {
    "how many": ("nnodes", "nproc_per_node", "max_restarts", "standalone"),
    "how the nodes meet": (
        "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "node_rank", "master_addr", "master_port",
        "local_addr",
    ),
    "the kind of worker": (
        "module", "no_python", "run_path", "role", "start_method", "numa_binding", "virtual_local_rank",
        "monitor_interval",
    ),
    "logs": (
        "log_dir", "redirects", "tee", "local_ranks_filter", "duplicate_stdout_filters",
        "duplicate_stderr_filters", "logs_specs",
    ),
    "signals and events": ("signals_to_handle", "shutdown_timeout", "event_log_handler"),
}  # fmt: skip
OF_TORCHRUN = {
    f"{title} (as in torchrun)": tuple(_ROWS[name] for name in names) for title, names in _TORCHRUN.items()
}
"""torchrun's flags under the headings of the help of ``run``."""

_of_torchrun = {row.name for rows in OF_TORCHRUN.values() for row in rows}
OWN = tuple(row for name, row in _ROWS.items() if name not in _of_torchrun)
"""The other flags of ``run``: those of a job that agents read, and its own."""

RUN = (*(row for rows in OF_TORCHRUN.values() for row in rows), *OWN)


if TYPE_CHECKING:

    class _OfAgent(ForAgents, RunSettings, JobSettings):  # type: ignore[misc]
        """`module` is a switch here."""
else:
    _OfAgent = object


class AgentSettings(_OfAgent):
    """The settings of an agent, each as a value of its type; they do not change.

    Args:
        given: values by name; None, and a name that is missing, stand for the default of the agent.

    Attributes:
        given: the names with a value.
    """

    given: frozenset[str]

    def __init__(self, **given: Any) -> None:
        known = {name: value for name, value in given.items() if value is not None}
        vars(self).update({row.name: row.reader_default for row in RUN}, **known, given=frozenset(known))

    @classmethod
    def of(cls, args: object) -> AgentSettings:
        """Return the settings that a command line has given, by its flags."""
        return cls(**{row.name: getattr(args, row.name) for row in RUN})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"the settings of an agent do not change: {name}")

    def replaced(self, **given: Any) -> AgentSettings:
        """Return the same settings with other values."""
        return AgentSettings(**{**{name: getattr(self, name) for name in self.given}, **given})


class FinishSettings:
    """The arguments of ``finish`` in a job script beside the settings of the job."""

    run_dir = setting(ANY_PATH, None, "Run directory", to=FinishFlag())
    script = setting(
        SWITCH, OFF, "The job runs a job script of the user's own, and no agent", to=FinishFlag()
    )
    script_runs = setting(
        SWITCH,
        OFF,
        "That script has not ended: only requeue or end the job if Slurm ends it",
        to=FinishFlag(),
    )
    srun_exit_code = setting(
        NUMBER, 0, "Exit code of srun, or of that script", to=FinishFlag(), written=Written(metavar="RC")
    )
    relaunch = setting(
        NUMBER, 0, "How often srun was started again", to=FinishFlag(), written=Written(metavar="K")
    )
    begins = setting(
        SWITCH,
        OFF,
        "The job has not begun: only charge ends of earlier starts that have no record; stdout is empty "
        "if it may begin",
        to=FinishFlag(),
    )
    max_relaunch = setting(
        BUDGET, 3, "How often srun may be started again in one start of the job", to=FinishFlag()
    )
    job_info = setting(
        RAW,
        None,
        "Output of scontrol show job -o, where finish has no Slurm commands; it then ends with 81 for "
        "scontrol requeue and with 82 for scontrol requeuehold",
        to=FinishFlag(),
    )
    launch_failure = setting(RAW, "", "The line of the job script that failed before srun", to=FinishFlag())
    launch_failure_in = setting(
        RAW, "", "The part of the script that the line belongs to, such as setup", to=FinishFlag()
    )
    launch_failure_code = setting(NUMBER, None, "Exit code of that line", to=FinishFlag())


FINISH = (*rows_of(FinishSettings).values(), *OF_FINISH)
"""All flags of ``finish``."""
