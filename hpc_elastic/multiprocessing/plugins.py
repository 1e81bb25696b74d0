"""Find log specs that other packages offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpc_elastic.multiprocessing.logs import LogsSpecs

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
