"""torchrun as a module: ``python -m hpc_elastic.run``, and the functions of torch.distributed.run.

`main` called from Python goes through `hpc_elastic.launcher.elastic_launch` and raises its exceptions;
the command is `hpc-elastic run`, which ends with the exit code of the worker that failed.
"""

import sys

if __name__ == "__main__":  # before anything else is imported
    from hpc_elastic.isolated.callers_path import drop_callers_places

    drop_callers_places()

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.cli.run.script import run_script_path
from hpc_elastic.errors import HpcElasticError, InputError
from hpc_elastic.lazy_names import lazy_names
from hpc_elastic.settings.table import RENDEZVOUS

if TYPE_CHECKING:
    from hpc_elastic.argparse_util import check_env, env
    from hpc_elastic.cli.run.nodes import RunPlace
    from hpc_elastic.launcher import LaunchConfig, elastic_launch
    from hpc_elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
    from hpc_elastic.multiprocessing.errors import record
    from hpc_elastic.utils import macros
    from hpc_elastic.utils.logging import get_logger

__all__ = [
    "DefaultLogsSpecs",
    "FlagError",
    "LaunchConfig",
    "LogsSpecs",
    "Std",
    "check_env",
    "config_from_args",
    "determine_local_world_size",
    "elastic_launch",
    "env",
    "get_args_parser",
    "get_logger",
    "get_rdzv_endpoint",
    "get_use_env",
    "macros",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "record",
    "run",
    "run_script_path",
]

_OF_TORCH: Final = {
    "nnodes": "1:1",
    "nproc_per_node": "1",
    "node_rank": 0,
    "master_addr": "127.0.0.1",
    "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
}
_TORCHS_PORT: Final = 29500
_HOMES: Final = {  # names that programs take from torch's module although they are at home elsewhere
    **dict.fromkeys(("LaunchConfig", "elastic_launch"), ".launcher"),
    **dict.fromkeys(("DefaultLogsSpecs", "LogsSpecs", "Std"), ".multiprocessing"),
    **dict.fromkeys(("check_env", "env"), ".argparse_util"),
    "get_logger": ".utils.logging",
    "macros": ".utils",
    "record": ".multiprocessing.errors",
}

__getattr__, __dir__ = lazy_names("hpc_elastic.run", _HOMES)


class FlagError(InputError, ValueError, AssertionError):
    """The value of a flag cannot be used; of all the kinds that torch raises for it."""


def get_args_parser() -> ArgumentParser:
    """Return the parser of the command line, with torchrun's defaults."""
    from hpc_elastic.cli.run.flags import torchs_parser  # noqa: PLC0415 - workers of --run-path import this

    made = torchs_parser()
    made.read_as_torchrun()
    made.conflict_handler = "resolve"  # a program that adds a flag of its own knows nothing of ours
    made.set_defaults(**{name: value for name, value in _OF_TORCH.items() if made.get_default(name) is None})
    return made


def parse_args(args: Sequence[str] | None) -> Namespace:
    """Return the flags in a command line; those of this process if there is none."""
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """Return the least and the most nodes of ``N`` or ``MIN:MAX``.

    Raises:
        RuntimeError: it has more parts.
        ValueError: a part is no number.
    """
    parts = nnodes.split(":")
    if len(parts) > 2:  # noqa: PLR2004 - MIN and MAX
        raise RuntimeError(f'nnodes={nnodes} is not in "MIN:MAX" format')
    return int(parts[0]), int(parts[-1])


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return the number of workers that ``--nproc-per-node`` means on this node.

    Raises:
        ValueError: it is no number, or there is no such device.
    """
    from hpc_elastic.cli.run.values import slots  # noqa: PLC0415 - workers of --run-path import this module

    with _as_torch():
        return slots(nproc_per_node, None, os.environ)


def get_rdzv_endpoint(args: Namespace) -> str:
    """Return where the nodes meet: for ``static`` without an endpoint the master."""
    if args.rdzv_backend == "static" and not args.rdzv_endpoint:
        return f"{args.master_addr}:{args.master_port}"
    return str(args.rdzv_endpoint)


def get_use_env(args: Namespace) -> bool:
    """Tell whether workers read LOCAL_RANK from the environment, and get no ``--local-rank``."""
    return bool(getattr(args, "use_env", True))


def config_from_args(args: Namespace) -> "tuple[LaunchConfig, Callable[..., Any] | str, list[str]]":
    """Return the arguments of `elastic_launch`: configuration, entry point of the workers, and its arguments.

    Args:
        args: the flags; one that is missing is given its default.

    Raises:
        FlagError: a value cannot be used.
        RuntimeError: ``--nnodes`` has more than two parts.
    """
    from hpc_elastic.cli.run import options as run_work  # noqa: PLC0415 - workers of --run-path import this module
    from hpc_elastic.cli.run import values  # noqa: PLC0415 - workers of --run-path import this module
    from hpc_elastic.launcher import LaunchConfig  # noqa: PLC0415 - the same

    _complete(args)
    low, high = parse_min_max_nnodes(args.nnodes)
    if not 0 < low <= high:
        raise FlagError(f"min_nodes must be > 0 and <= max_nodes, got min_nodes={low}, max_nodes={high}")
    if args.max_restarts < 0:
        raise FlagError("max_restarts must be >= 0")
    workers = determine_local_world_size(args.nproc_per_node)
    _share_cpus(workers)
    with _as_torch():
        if args.no_python and args.module:
            raise InputError(
                "Don't use both the '--no-python' flag and the '--module' flag at the same time."
            )
        work = run_work.work_of(args)
        logs = run_work.logs_specs_of(args, args.log_dir)
        numa = run_work.numa_of(args)
        values.meanings((), (), args.signals_to_handle)
    config = LaunchConfig(
        min_nodes=low,
        max_nodes=high,
        nproc_per_node=workers,
        run_id=args.rdzv_id,
        role=args.role,
        rdzv_endpoint=get_rdzv_endpoint(args),
        rdzv_backend=args.rdzv_backend,
        rdzv_configs=_rdzv_configs(args),
        max_restarts=args.max_restarts,
        monitor_interval=args.monitor_interval,
        start_method=args.start_method,
        log_line_prefix_template=args.log_line_prefix_template or os.environ.get(run_work.PREFIX_VARIABLE),
        local_addr=args.local_addr,
        logs_specs=logs,
        event_log_handler=args.event_log_handler,
        numa_options=numa,
        signals_to_handle=args.signals_to_handle,
        duplicate_stdout_filters=list(args.duplicate_stdout_filters),
        duplicate_stderr_filters=list(args.duplicate_stderr_filters),
        virtual_local_rank=args.virtual_local_rank,
        shutdown_timeout=args.shutdown_timeout,
    )
    if work.entrypoint is not None:
        return config, work.entrypoint, list(work.args)
    command, *rest = work.argv
    rank = [] if get_use_env(args) else ["--local-rank=${local_rank}"]
    place = len(work.argv) - 1 - len(args.training_script_args)
    return config, command, [*rest[:place], *rank, *rest[place:]]


def _complete(args: Namespace) -> None:
    """Give flags their defaults, for objects that were made without the parser."""
    for action in get_args_parser()._actions:  # noqa: SLF001 - argparse has no other way to ask
        if action.option_strings and action.dest != "help" and not hasattr(args, action.dest):
            setattr(args, action.dest, action.default)


def _rdzv_configs(args: Namespace) -> dict[str, Any]:
    from hpc_elastic.rendezvous.utils import parse_rendezvous_config  # noqa: PLC0415 - as above

    found: dict[str, Any] = dict(parse_rendezvous_config(args.rdzv_conf.strip("'\"")))
    for name in RENDEZVOUS:
        if getattr(args, name, None) is not None:
            found[name] = getattr(args, name)
    if args.rdzv_backend == "static":
        found["rank"] = args.node_rank
    return found


def _share_cpus(workers: int) -> None:
    """Give each of several workers its part of the CPUs, unless the user has decided."""
    if workers > 1:
        share = max(1, len(os.sched_getaffinity(0)) // workers)
        os.environ.setdefault("OMP_NUM_THREADS", str(share))


def run(args: Namespace) -> None:
    """Run the workers of this node to their end.

    A backend that meets in a directory gets the one in which agents of `hpc-elastic run` with the same
    flags meet.

    Args:
        args: the flags.

    Raises:
        ChildFailedError: a worker failed for good.
        FlagError: a value cannot be used.
    """
    from hpc_elastic.cli.run.options import logs_of  # noqa: PLC0415 - workers of --run-path import this module
    from hpc_elastic.run import elastic_launch  # noqa: PLC0415 - or a replacement by the program

    _complete(args)
    with _as_torch():
        place = _choose_place(args)
    if args.master_port is None:
        args.master_port = _TORCHS_PORT
    config, command, command_args = config_from_args(args)
    if place is not None:
        config.logs_specs = logs_of(args, place.paths)
        config.rdzv_configs.pop("store_type", None)  # the endpoint is that of this run by now
    elastic_launch(config=config, entrypoint=command)(*command_args)


def _choose_place(args: Namespace) -> "RunPlace | None":
    """Put the directory in which the nodes meet into the flags, unless they meet without one."""
    from hpc_elastic.cli.run.nodes import BACKENDS, place_of  # noqa: PLC0415 - as above
    from hpc_elastic.slurm.client.environment import SlurmEnv  # noqa: PLC0415 - as above

    _, most = parse_min_max_nnodes(args.nnodes)
    if args.standalone:
        most = 1
        args.nnodes = "1:1"
    is_static = args.rdzv_backend == "static" and not args.standalone
    goes_alone = is_static and not args.rdzv_endpoint and args.master_port is None and most == 1
    if args.rdzv_backend not in BACKENDS or (is_static and not goes_alone and not args.run_dir):
        return None
    slurm = SlurmEnv.from_environ(os.environ)
    place = place_of(args, os.environ, slurm if slurm and slurm.in_step else None, most)
    args.rdzv_backend = "c10d" if args.rdzv_backend == "static" else args.rdzv_backend
    args.rdzv_endpoint, args.rdzv_id = place.paths.root, place.run_id
    return place


@contextmanager
def _as_torch() -> Iterator[None]:
    """Raise wrong input as an error that is also of torch's kind."""
    try:
        yield
    except InputError as error:
        if isinstance(error, ValueError):
            raise
        raise FlagError(error.message, where=error.where, fix=error.fix) from None


def main(args: Sequence[str] | None = None) -> None:
    """Run the workers of this node to their end.

    Args:
        args: the command line without the program's name; that of this process by default.

    Raises:
        ChildFailedError: a worker failed for good.
        FlagError: a value cannot be used.
    """
    from hpc_elastic.multiprocessing.errors import record  # noqa: PLC0415 - workers of --run-path import this

    record(run)(parse_args(args))


def command(argv: Sequence[str]) -> int:
    """Run a command line as `hpc-elastic run` does, also over the handler of a plug-in.

    Args:
        argv: the arguments without the program's name.

    Returns:
        The exit code of the process.
    """
    from hpc_elastic.cli.run.command import main as run_agent  # noqa: PLC0415 - as above
    from hpc_elastic.cli.run.nodes import BACKENDS  # noqa: PLC0415 - as above
    from hpc_elastic.isolated.callers_path import search_callers_places  # noqa: PLC0415 - as above

    try:
        args = parse_args(argv)
    except InputError as error:  # of a variable
        return _refused(error)
    is_plugins = args.rdzv_backend not in BACKENDS
    if args.run_path or is_plugins:  # scripts and handlers search for modules where those of torchrun do
        search_callers_places()
    return _run_over_plugin(args) if is_plugins else run_agent(argv)


def _refused(error: Exception) -> int:
    from hpc_elastic.exit_codes import ExitCode  # noqa: PLC0415 - as above
    from hpc_elastic.text import visible_lines  # noqa: PLC0415 - as above

    sys.stderr.write(f"error: {visible_lines(str(error))}\n")
    return ExitCode.USAGE


def _run_over_plugin(args: Namespace) -> int:
    from hpc_elastic.exit_codes import ExitCode  # noqa: PLC0415 - as above
    from hpc_elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415 - as above
    from hpc_elastic.multiprocessing.signals import SignalException  # noqa: PLC0415 - as above

    try:
        run(args)
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else 128 - code
    except (InputError, ValueError) as error:  # FlagError, and refusals of the registry
        return _refused(error)
    except HpcElasticError as error:  # of the rendezvous
        _refused(error)
        return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
