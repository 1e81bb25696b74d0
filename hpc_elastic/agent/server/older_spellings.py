"""Arguments that agents accept in several forms: handlers and classes for older versions of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.meet.interface import RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsSpecs
from hpc_elastic.multiprocessing.std import Std

_ENV_PREFIX = "TORCH_ELASTIC_"
_START_METHODS = ("spawn", "fork", "forkserver")


class TimeoutInputError(InputError, ValueError):
    """A timeout cannot be used."""


def timeout_of(name: str, value: float | None, default: float, environ: Mapping[str, str]) -> float:
    """Return a timeout: the one given, else that of the environment, else the default [s].

    Args:
        name: of the argument; the variable is ``TORCH_ELASTIC_<NAME>``.
        value: the argument.
        default: if nothing is said.
        environ: the agent's environment.

    Raises:
        TimeoutInputError: it is no number, or negative.
    """
    variable = _ENV_PREFIX + name.upper()
    where = variable if value is None else ""
    given: object = environ.get(variable, default) if value is None else value
    try:
        seconds = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TimeoutInputError(f"{name} must be a number of seconds, got {given!r}", where=where) from None
    if not seconds >= 0:
        raise TimeoutInputError(f"{name} must be non-negative, got {given}", where=where)
    return int(seconds) if seconds.is_integer() else seconds


def call_shutdown(hook: Callable[..., None], timeout: float, death_sig: int | None = None) -> None:
    """Call an agent's `_shutdown` with the arguments that it accepts: older ones have fewer or none."""
    parameters = inspect.signature(hook).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds
    keywords = {"timeout": timeout} if takes_all or "timeout" in parameters else {}
    takes_signal = inspect.Parameter.VAR_POSITIONAL in kinds or any(name != "timeout" for name in parameters)
    if death_sig is not None and takes_signal:
        hook(death_sig, **keywords)
    else:
        hook(**keywords)


def as_rendezvous_info(found: Any, local_addr: str | None) -> RendezvousInfo:
    """Return the result of a handler's `next_rendezvous` in the present form.

    Args:
        found: a `RendezvousInfo`; older handlers return (store, rank, world size) and leave it to the
            agents to agree on an address and a port.
        local_addr: address of this node for the others.
    """
    if isinstance(found, tuple):
        store, rank, world_size = found
    elif found.bootstrap_store_info is None:
        store, rank, world_size = found.store, found.rank, found.world_size
    else:
        info: RendezvousInfo = found
        return info
    where = RendezvousStoreInfo.build(rank, store, local_addr)
    return RendezvousInfo(store, rank, world_size, where)


def logs_specs_of(
    logs_specs: LogsSpecs | None,
    log_dir: str | None,
    redirects: Std | Mapping[int, Std] | None,
    tee: Std | Mapping[int, Std] | None,
) -> LogsSpecs:
    """Return where logs go, by the spelling of today or by the older one.

    Args:
        logs_specs: the spelling of today.
        log_dir: older: an argument of the agent.
        redirects: older: of the `WorkerSpec`.
        tee: older: of the `WorkerSpec`.

    Raises:
        InputError: both spellings are used.
    """
    if logs_specs is None:
        return DefaultLogsSpecs(log_dir, redirects or Std.NONE, tee or Std.NONE)
    if log_dir is not None or redirects is not None or tee is not None:
        raise InputError(
            "both logs_specs and log_dir, redirects or tee are given",
            where="LocalElasticAgent",
            fix="give logs_specs alone: DefaultLogsSpecs takes the others",
        )
    return logs_specs


def start_method_of(logs_specs: str) -> str:
    """Return the start method that stands where logs_specs stands today.

    Raises:
        InputError: it is none.
    """
    if logs_specs not in _START_METHODS:
        raise InputError(
            f"logs_specs is {logs_specs!r}, which is neither a LogsSpecs nor a start method",
            where="LocalElasticAgent",
            fix=f"give log_dir={logs_specs!r}, or a DefaultLogsSpecs",
        )
    return logs_specs
