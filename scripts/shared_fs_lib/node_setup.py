"""Finish a node from inside: its own mounts, names, addresses and kernel modules."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TEMPORARY = "/run/tmp"
MODULES = Path("/usr/lib/uml/modules")
WRITABLE = {"/run": "755", "/var/tmp": "1777", "/var/lib/nfs": "755", "/dev/shm": "1777"}  # noqa: S108
NFS_DIRECTORIES = ("sm", "sm.bak", "rpc_pipefs", "v4recovery")


class Plan(TypedDict):
    """What a node shall look like.

    Attributes:
        name: its host name.
        addresses: interface -> IPv4 address with the prefix length.
        etc: directory with `hosts` and `resolv.conf`.
        results: directory of the machine that the node may write to.
        log: its console.
        modules: kernel modules to load, with their parameters; only in a kernel of its own.
        kernel: command line of the node's kernel; empty for a node made of namespaces.
    """

    name: str
    addresses: dict[str, str]
    etc: str
    results: str
    log: str
    modules: list[str]
    kernel: list[str]


def set_up_kernel(plan: Plan) -> None:
    """Finish a kernel of its own, whose root is the machine's, read-only."""
    _own_environment()
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    if not os.path.ismount("/dev"):  # some kernels have done it
        mount("devtmpfs", "/dev")
    os.mkdir("/dev/shm")  # noqa: S108 - mounted on below
    for place, mode in WRITABLE.items():
        mount("tmpfs", place, f"mode={mode}")
    for name in NFS_DIRECTORIES:
        os.makedirs(os.path.join("/var/lib/nfs", name))
    mount("hostfs", plan["results"], plan["results"])
    _own_names(plan)
    load_modules(plan["modules"])
    _set_addresses(plan["addresses"])


def set_up_namespaces(plan: Plan) -> None:
    """Finish a node made of namespaces; its disk is the machine's."""
    _own_environment()
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    mount("tmpfs", "/run", "mode=755")
    mount("tmpfs", "/dev/shm", "mode=1777")  # noqa: S108 - a private one
    _own_names(plan)
    _set_addresses(plan["addresses"])


def mount(kind: str, place: str, options: str = "defaults") -> None:
    """Mount a file system."""
    subprocess.run(["mount", "-t", kind, "-o", options, "none", place], check=True)


def load_modules(wanted: Iterable[str]) -> None:
    """Load modules of the running kernel with all that they need.

    Args:
        wanted: `name` or `name option=value`.
    """
    (tree,) = MODULES.glob(os.uname().release)
    needs = read_needs((tree / "modules.dep").read_text())
    loaded: set[str] = set()
    for words in (text.split() for text in wanted):
        for file in (*reversed(needs[words[0]][1:]), needs[words[0]][0]):
            if file not in loaded:
                options = words[1:] if file == needs[words[0]][0] else []
                subprocess.run(["insmod", str(tree / file), *options], check=True)
                loaded.add(file)


def read_needs(text: str) -> dict[str, list[str]]:
    """Read modules.dep: name -> its own file, then those it needs, the first needed last."""
    needs = {}
    for line in text.splitlines():
        file, _, others = line.partition(":")
        needs[os.path.basename(file).partition(".")[0]] = [file, *others.split()]
    return needs


def _own_environment() -> None:
    os.environ.clear()
    os.environ.update(
        PATH=SYSTEM_PATH,
        HOME="/root",
        LANG="C.UTF-8",
        TMPDIR=TEMPORARY,
        PYTHONDONTWRITEBYTECODE="1",  # the disk is read-only in a kernel of its own
    )


def _own_names(plan: Plan) -> None:
    """Look up names in a file of our own only: a daemon that asks a name server would hang."""
    os.makedirs(TEMPORARY)
    os.makedirs("/run/lock")
    socket.sethostname(plan["name"])
    for name in ("hosts", "resolv.conf"):
        target = os.path.join("/etc", name)
        if os.path.exists(target):
            subprocess.run(["mount", "--bind", os.path.join(plan["etc"], name), target], check=True)


def _set_addresses(addresses: Mapping[str, str]) -> None:
    lines = ["link set lo up"]
    for interface, address in addresses.items():
        lines += [f"addr add {address} dev {interface}", f"link set {interface} up"]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)
