"""Cgroups of a node: one in every controller's tree of version 1, or one in that of version 2."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .addresses import AddressPlan
from .errors import DevClusterError
from .settings import Tracker

SHIM = Path("/usr/local/lib/devcluster/only_cgroup2.so")
"""See `only_cgroup2.c`; in a box it is put there from outside."""

PLUGINS_SINCE = (21, 8)
"""The release of Slurm that has a plugin for each version of cgroups; older ones know version 1 only."""

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


def v2_mount(mounts: str) -> Path | None:
    """Where the tree of version 2 is, by the text of /proc/mounts; None if it is not mounted."""
    lines = (line.split() for line in mounts.splitlines())
    return next((Path(words[1]) for words in lines if words[2] == "cgroup2"), None)


def is_hybrid(own: str) -> bool:
    """Whether a machine has version 1 besides version 2, by the text of /proc/self/cgroup."""
    return any(not line.startswith("0::") for line in own.splitlines())


def check(tracker: Tracker, slurm: tuple[int, ...]) -> None:
    """Refuse a tracker for which this machine, or its release of Slurm, lacks something.

    Raises:
        DevClusterError: the text says what is missing.
    """
    if tracker is Tracker.CGROUP:
        hierarchies()
    if tracker is Tracker.CGROUP2:
        if slurm < PLUGINS_SINCE:
            raise DevClusterError(
                "--proctrack cgroup2 needs Slurm 22.05 or newer; use --proctrack linuxproc."
            )
        _v2_root()
        shim()


def possible(slurm: tuple[int, ...]) -> list[Tracker]:
    """Return the trackers for which this machine, and its release of Slurm, has all that they need."""
    found = []
    for tracker in Tracker:
        try:
            check(tracker, slurm)
        except DevClusterError:
            continue
        found.append(tracker)
    return found


def shim() -> Path | None:
    """What has Slurm's plugin take a machine that has version 1 as well; None where that is not needed.

    Raises:
        DevClusterError: it is needed and neither there nor to be made.
    """
    if not is_hybrid(Path("/proc/self/cgroup").read_text()):
        return None
    if not SHIM.exists() and not build_shim(SHIM):
        raise DevClusterError(
            "This machine has cgroup v1 besides v2 (hybrid), which Slurm's cgroup/v2 refuses. Boot it with "
            "systemd.unified_cgroup_hierarchy=1, or install gcc: then v1 can be hidden from slurmd."
        )
    return SHIM


def build_shim(target: Path) -> bool:
    """Compile the shim; returns whether that was possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source, draft = Path(__file__).with_name("only_cgroup2.c"), target.with_suffix(f".{os.getpid()}")
    command = ("cc", "-O1", "-shared", "-fPIC", "-o", str(draft), str(source), "-ldl")
    if shutil.which("cc") is None or subprocess.run(command, check=False).returncode != 0:
        return False
    draft.replace(target)
    return True


def mounts(tracker: Tracker) -> list[list[str]]:
    """What a node mounts, as `node_init` takes it."""
    if tracker is Tracker.CGROUP2:
        return [["cgroup2"]]
    return [list(found.controllers) for found in hierarchies()] if tracker is Tracker.CGROUP else []


def create(plan: AddressPlan, name: str, tracker: Tracker) -> None:
    """Make empty cgroups for a node."""
    remove(plan, name, tracker)
    for directory in _directories(plan, name, tracker):
        directory.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # a cpuset without CPUs accepts no process
            if tracker is Tracker.CGROUP and (directory / file).exists():
                (directory / file).write_text((directory.parent / file).read_text())


def join(plan: AddressPlan, name: str, tracker: Tracker, pid: int, *, leaf: bool = False) -> None:
    """Move a process into the node's cgroups, of version 2 into the leaf for programs from outside."""
    below = "enter" if leaf and tracker is Tracker.CGROUP2 else ""
    for directory in _directories(plan, name, tracker):
        (directory / below / "cgroup.procs").write_text(str(pid))


def in_leaf(tracker: Tracker, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs `argv` inside a node, of version 2 in the leaf for its own programs.

    slurmd refuses a cgroup with a process of another PID namespace, and nsenter is one while it waits.
    """
    if tracker is not Tracker.CGROUP2:
        return tuple(argv)
    return ("sh", "-c", 'echo $$ > /sys/fs/cgroup/init/cgroup.procs && exec "$@"', "sh", *argv)


def remove(plan: AddressPlan, name: str, tracker: Tracker) -> None:
    """Remove the node's cgroups with all that Slurm made below; no process may be left in them."""
    for directory in _directories(plan, name, tracker):
        for path, _, _ in os.walk(directory, topdown=False):
            Path(path).rmdir()


def _v2_root() -> Path:
    found = v2_mount(Path("/proc/mounts").read_text())
    if found is None:
        raise DevClusterError("--proctrack cgroup2 needs a mounted cgroup2; use --proctrack linuxproc.")
    return found


def _directories(plan: AddressPlan, name: str, tracker: Tracker) -> list[Path]:
    roots: list[Path] = []
    if tracker is Tracker.CGROUP:
        roots = [hierarchy.mount_point for hierarchy in hierarchies()]
    if tracker is Tracker.CGROUP2:
        roots = [_v2_root()]
    return [root / f"{plan.tag}-{name}" for root in roots]
