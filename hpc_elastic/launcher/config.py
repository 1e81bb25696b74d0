"""The configuration of a launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hpc_elastic.errors import InputError
from hpc_elastic.ids import SHUTDOWN_S, Env
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsSpecs
from hpc_elastic.settings.values import are_module_names

if TYPE_CHECKING:
    from hpc_elastic.processes.numa import NumaOptions

_SHUTDOWN: Final = (Env.SHUTDOWN_TIMEOUT, str(SHUTDOWN_S))  # variable, and the value without it [s]
_EXIT_BARRIER: Final = (Env.EXIT_BARRIER_TIMEOUT, "300")
_Number = TypeVar("_Number", int, float)
_TIMEOUT_S: Final = 900


@dataclass
class LaunchConfig:
    """The settings of `elastic_launch` for this node and for the run.

    Args:
        min_nodes: with fewer nodes nothing is started.
        max_nodes: more nodes are not taken into a round.
        nproc_per_node: workers on this node.
        logs_specs: where logs go; None: error files go to the run directory, or without one to a new
            temporary directory, and the workers' output to the console.
        run_id: the same on all nodes of a run; an empty one is made up, see `launch_agent`.
        role: name of the workers' task.
        rdzv_endpoint: where the nodes meet; for ``shared_fs`` a directory that all of them see.
        rdzv_backend: how they meet. ``etcd``, ``etcd-v2`` and ``c10d`` stand for ``shared_fs``.
        rdzv_configs: options of the backend.
        rdzv_timeout: older name of ``rdzv_configs["timeout"]``, how long nodes wait for each other [s].
        max_restarts: how often the workers are started again after one has failed.
        monitor_interval: longest time between two checks of the workers [s], if exits are not reported.
        start_method: of a function's processes: ``spawn``, ``fork`` or ``forkserver``.
        log_line_prefix_template: header of each teed line; ``${role_name}``, ``${rank}``,
            ``${local_rank}`` and ``${node}`` are replaced.
        metrics_cfg: handed to `metrics.initialize_metrics`.
        local_addr: address of this node for the others; found out if not given.
        event_log_handler: name of the logging handler that gets the agent's events.
        numa_options: binds each worker to the CPUs near its GPU.
        signals_to_handle: names of the signals that end a launch in an orderly way.
        duplicate_stdout_filters: teed lines of stdout with one of these texts also go to one common file.
        duplicate_stderr_filters: the same for stderr.
        virtual_local_rank: each worker sees its own GPU alone, and is local rank 0.
        shutdown_timeout: from the signal to the workers to SIGKILL [s]; None means
            TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30.
        exit_barrier_timeout: how long a node whose workers are gone waits for the others [s]; None means
            TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT, else 300 (as on the main branch of torch).
        preload: modules that one process of this node imports once, ``auto``: those that the workers have
            imported; each worker is a copy of it. Only over a shared directory.

    Raises:
        InputError: a field has a value of another kind.
        ValueError: a timeout is negative, or no number.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: NumaOptions | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    exit_barrier_timeout: float | None = None
    preload: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Fill in the fields that depend on other fields or on the environment."""
        _check_kinds(self)
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", _TIMEOUT_S)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
            self.logs_specs.is_chosen = False
        self.shutdown_timeout = _seconds("shutdown_timeout", self.shutdown_timeout, _SHUTDOWN, int)
        barrier = self.exit_barrier_timeout
        self.exit_barrier_timeout = float(_seconds("exit_barrier_timeout", barrier, _EXIT_BARRIER, float))

    @property
    def wanted_logs(self) -> LogsSpecs | None:
        """The given destination of logs, if any."""
        return self.logs_specs if getattr(self.logs_specs, "is_chosen", True) else None


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


_KINDS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    **dict.fromkeys(
        ("min_nodes", "max_nodes", "nproc_per_node", "max_restarts"), (_is_whole, "a whole number")
    ),
    **dict.fromkeys(("role", "rdzv_endpoint", "rdzv_backend", "start_method"), (_is_text, "a text")),
    **dict.fromkeys(("event_log_handler", "signals_to_handle"), (_is_text, "a text")),
    **dict.fromkeys(("log_line_prefix_template", "local_addr"), (_is_text_or_none, "a text, or None")),
    "rdzv_configs": (lambda value: isinstance(value, Mapping), "a mapping of options"),
    "monitor_interval": (lambda value: isinstance(value, int | float), "seconds"),
    "preload": (are_module_names, "names of modules in a list"),
    "logs_specs": (lambda value: value is None or hasattr(value, "reify"), "a LogsSpecs"),
}


def _as_text(value: object) -> str:
    return "" if value is None else str(value)


def _check_kinds(config: LaunchConfig) -> None:
    """Refuse a wrong value at once, naming the field."""
    config.run_id = _as_text(config.run_id)  # people give job numbers
    if isinstance(config.rdzv_endpoint, os.PathLike):
        config.rdzv_endpoint = os.fspath(config.rdzv_endpoint)
    for name, (fits, wanted) in _KINDS.items():
        value = getattr(config, name)
        if not fits(value):
            raise InputError(f"it is {value!r}", where=f"LaunchConfig.{name}", fix=f"give {wanted}")


def _seconds(
    name: str, given: _Number | None, default: tuple[str, str], number: Callable[[str], _Number]
) -> _Number:
    """Return a timeout: as given, else as the environment has it, else the default."""
    if given is not None and not isinstance(given, int | float):
        raise InputError(f"it is {given!r}", where=f"LaunchConfig.{name}", fix="give seconds")
    variable, text = default[0], os.environ.get(default[0], default[1])
    try:
        value = number(text) if given is None else given
    except ValueError:
        raise ValueError(f"{variable} must be a number of seconds, got {text!r}") from None
    if not value >= 0:
        source = f" from {variable}" if given is None else ""
        raise ValueError(f"{name} must be non-negative, got {value}{source}")
    return value
