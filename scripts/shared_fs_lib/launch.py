"""Boot nodes: a user-mode Linux each, or a set of namespaces each.

A node lives as long as one process of the machine, its power supply; when that one is killed,
the kernel kills every process of the node.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devcluster_lib.errors import DevClusterError
from devcluster_lib.processes import (
    ProcessId,
    kill_and_wait,
    let_go,
    said_process,
    say_go,
    start_helper,
)

from . import exec_client, switch
from .layout import SERVER, Kind, Layout, control_address, data_address, number_of
from .node_main import HELPER
from .node_setup import SYSTEM_PATH, Plan

PROGRAM = Path(__file__).parents[1] / "shared-fs"
BOOT_S = 60.0
MEMORY = {SERVER: "512M"}
CLIENT_MEMORY = "384M"
CLIENT_MODULES = ("lockd nlm_grace_period=5", "nfs", "nfsv3", "nfsv4")
SERVER_MODULES = (*CLIENT_MODULES, "nfsd")


def boot(
    layout: Layout, kind: Kind, names: Sequence[str], remember: Callable[[Mapping[str, ProcessId]], None]
) -> dict[str, ProcessId]:
    """Boot nodes side by side and wait until they answer.

    Args:
        layout: file names.
        kind: tells what a node is made of.
        names: the nodes.
        remember: writes the nodes down. A node goes on only after that, and ends by itself if this
            command dies earlier, so that none can get lost.

    Raises:
        DevClusterError: a node did not come up; none of `names` is left running then.
    """
    starting = {name: _launch(layout, kind, name) for name in names}
    nodes: dict[str, ProcessId] = {}
    try:
        for name, process in starting.items():
            nodes[name] = said_process(process, name, layout.log(name))
        remember(nodes)
        for name, process in starting.items():
            _connect(layout, kind, name, nodes[name])
            say_go(process)
        for name, node in nodes.items():
            exec_client.connect(layout, name, node, BOOT_S).close()
    except BaseException:
        kill_and_wait(nodes.values())
        raise
    finally:
        for process in starting.values():
            let_go(process)
    return nodes


def _connect(layout: Layout, kind: Kind, name: str, node: ProcessId) -> None:
    if kind.needs_kernel:
        switch.add_taps(layout.network, name)
    else:
        switch.plug_in(layout.network, name, node.pid)


def _launch(layout: Layout, kind: Kind, name: str) -> subprocess.Popen[str]:
    layout.plan(name).write_text(json.dumps(_plan(layout, kind, name)))
    if kind.needs_kernel:
        where = ["nsenter", f"--net={switch.NAMESPACES / layout.network}", "unshare"]
    else:
        where = ["unshare", "--net", "--uts", "--ipc"]
    words = (*where, "--mount", "--pid", "--fork", "--", *_program("outside", layout, name))
    return start_helper(words, layout.log(name))


def _program(part: str, layout: Layout, name: str) -> list[str]:
    return [sys.executable, "-B", "-E", "-s", "-S", str(PROGRAM), HELPER, part, str(layout.plan(name))]


def _plan(layout: Layout, kind: Kind, name: str) -> Plan:
    interfaces = ("vec0", "vec1") if kind.needs_kernel else ("eth0", "eth1")
    addresses = (f"{data_address(name)}/24", f"{control_address(name)}/24")
    return {
        "name": name,
        "addresses": dict(zip(interfaces, addresses, strict=True)),
        "etc": str(layout.etc),
        "results": str(layout.results),
        "log": str(layout.log(name)),
        "modules": list(SERVER_MODULES if name == SERVER else CLIENT_MODULES),
        "kernel": _kernel(layout, name) if kind.needs_kernel else [],
    }


def _kernel(layout: Layout, name: str) -> list[str]:
    """Command line of a user-mode Linux whose root is the machine's, read-only."""
    kernel = shutil.which("linux.uml", path=SYSTEM_PATH)
    if kernel is None:
        raise DevClusterError("There is no linux.uml here; `shared-fs install` brings it.")
    program, *words = _program("inside", layout, name)
    if any(len(word.split()) != 1 for word in (program, *words)):
        raise DevClusterError(
            f"A kernel's command line takes no blanks, but there is one in {program} or {' '.join(words)}; "
            "use another --dir, interpreter or place for the repository."
        )
    network = [
        f"vec{index}:transport=tap,ifname={name}{end},depth=64,gro=1,mac=02:00:00:{index:02x}:00:"
        f"{number_of(name):02x}"
        for index, end in enumerate(switch.BRIDGES.values())
    ]
    disk = [f"ubd0={layout.image}"] if name == SERVER else []
    return [
        kernel,
        f"mem={MEMORY.get(name, CLIENT_MEMORY)}",
        *("rootfstype=hostfs", "rootflags=/", "ro", "quiet", "con=null", "con0=null,fd:1"),
        *(f"umid={name}", "uml_dir=/dev/shm/uml"),
        *network,
        *disk,
        *(f"init={program}", "--", *words),
    ]
