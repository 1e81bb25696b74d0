"""Find log specs that other packages offer."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.multiprocessing.logs import LogsSpecs
from hpc_elastic.multiprocessing.std import Std

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PLUGIN_GROUPS: Final = ("hpc_elastic.logs_specs", "torchrun.logs_specs")
"""Entry point groups, searched in this order."""


def load_logs_specs(name: str) -> type[LogsSpecs]:
    """Return the class that a package offers by this name.

    Args:
        name: of the entry point.

    Raises:
        ValueError: there is none, or what it names has no `reify`.
    """
    known = _entry_points()
    for point in known:
        if point.name == name:
            return _checked(point)
    names = ", ".join(sorted({point.name for point in known})) or "none"
    raise ValueError(
        f"Could not find entrypoint under 'torchrun.logs_specs[{name}]' key, nor under "
        f"'hpc_elastic.logs_specs'; installed packages offer: {names}"
    )


def make_logs_specs(
    name: str,
    log_dir: str | None,
    redirects: Std | Mapping[int, Std],
    tee: Std | Mapping[int, Std],
    local_ranks_filter: Collection[int] | None,
) -> LogsSpecs:
    """Return the log specs that a package offers by this name, made as torchrun makes them.

    A class that is derived from torch's gets torch's `Std`.

    Args:
        name: of the entry point.
        log_dir: see `LogsSpecs`, as all that follow.
        redirects: which streams go to files.
        tee: which streams go to files *and* to the console.
        local_ranks_filter: whose output reaches the console; None means all.

    Raises:
        ValueError: there is none, or what it names has no `reify` or cannot be made.
    """
    made = load_logs_specs(name)
    std = _std_of(made)
    try:
        return made(
            log_dir=log_dir,
            redirects=_as(std, redirects),
            tee=_as(std, tee),
            local_ranks_filter=local_ranks_filter,
        )
    except TypeError as error:
        raise ValueError(f"the log specs {name!r} cannot be made: {error}") from error


def _std_of(specs: type) -> type:
    """Return the `Std` of the package from which log specs are derived."""
    bases = [base.__module__ for base in specs.__mro__ if base.__name__ == LogsSpecs.__name__]
    found: type = next((std for name in bases if (std := getattr(sys.modules[name], "Std", None))), Std)
    return found


def _as(std: type, streams: Std | Mapping[int, Std]) -> Any:
    """Return streams in the values of another `Std`."""
    if isinstance(streams, Std):
        return std(int(streams))
    return {rank: std(int(one)) for rank, one in streams.items()}


def _checked(point: EntryPoint) -> type[LogsSpecs]:
    found: type[LogsSpecs] = point.load()
    if not callable(getattr(found, "reify", None)):
        raise ValueError(  # noqa: TRY004 - one error for a plugin that cannot be used
            f"the entry point {point.name!r} names {point.value!r}, which has no method reify"
        )
    return found


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 30 ms

    return [point for group in PLUGIN_GROUPS for point in entry_points(group=group)]
