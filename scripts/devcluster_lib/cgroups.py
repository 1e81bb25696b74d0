"""One cgroup (version 1) per node in every controller's tree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .addresses import AddressPlan
from .errors import DevClusterError

NEEDED = frozenset({"freezer", "cpuset", "memory", "devices", "cpuacct"})
"""Controllers that Slurm's cgroup/v1 plugin opens."""


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree of version 1 controllers, such as `cpu,cpuacct`."""

    controllers: tuple[str, ...]
    mount_point: Path


def parse_mounts(mounts: str, known: frozenset[str]) -> tuple[Hierarchy, ...]:
    """Version 1 hierarchies in the text of /proc/mounts; `known` names the real controllers."""
    found: dict[tuple[str, ...], Hierarchy] = {}
    for line in mounts.splitlines():
        _, mount_point, kind, options = line.split()[:4]
        controllers = tuple(option for option in options.split(",") if option in known)
        if kind == "cgroup" and controllers:
            found.setdefault(controllers, Hierarchy(controllers, Path(mount_point)))
    return tuple(found.values())


def hierarchies() -> tuple[Hierarchy, ...]:
    """Version 1 hierarchies of this machine.

    Raises:
        DevClusterError: the machine has not the controllers that Slurm needs (for example
            because it mounts version 2 only).
    """
    table = Path("/proc/cgroups").read_text().splitlines()[1:]
    known = frozenset(line.split()[0] for line in table)
    found = parse_mounts(Path("/proc/mounts").read_text(), known)
    missing = NEEDED.difference(*(h.controllers for h in found))
    if missing:
        raise DevClusterError(
            "--proctrack cgroup needs the cgroup v1 controllers "
            f"{', '.join(sorted(missing))}, which this machine does not mount "
            "(it may offer cgroup v2 only); use --proctrack linuxproc."
        )
    return found


def create(plan: AddressPlan, name: str) -> None:
    """Make empty cgroups for a node."""
    remove(plan, name)
    for directory in _directories(plan, name):
        directory.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # a cpuset without CPUs accepts no process
            if (directory / file).exists():
                (directory / file).write_text((directory.parent / file).read_text())


def join(plan: AddressPlan, name: str, pid: int) -> None:
    """Move a process into the node's cgroups."""
    for directory in _directories(plan, name):
        (directory / "cgroup.procs").write_text(str(pid))


def remove(plan: AddressPlan, name: str) -> None:
    """Remove the node's cgroups with all that Slurm made below; no process may be left in them."""
    for directory in _directories(plan, name):
        for path, _, _ in os.walk(directory, topdown=False):
            Path(path).rmdir()


def _directories(plan: AddressPlan, name: str) -> list[Path]:
    return [hierarchy.mount_point / f"{plan.tag}-{name}" for hierarchy in hierarchies()]
