"""Boot a host (a node or the controller) in its own namespaces, and run programs in it.

A host lives as long as its PID 1 (`node_init`); when that one is killed, the kernel kills
every process of the host and frees its namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, network, node_init
from .addresses import AddressPlan
from .errors import DevClusterError
from .layout import Layout
from .processes import (
    SYSTEM_PATH,
    ProcessId,
    kill_and_wait,
    let_go,
    next_line,
    said_process,
    say_go,
    start_helper,
)
from .settings import Tracker

UNSHARE = ("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork")
ENTER = ("--net", "--uts", "--ipc", "--mount", "--pid")


@dataclass(frozen=True)
class Host:
    """One booted host.

    Attributes:
        name: `ctl` or `node<i>`.
        init: its PID 1.
        tracker: with which it was booted; unless that is linuxproc it has cgroups of its own.
    """

    name: str
    init: ProcessId
    tracker: Tracker


def boot(
    plan: AddressPlan,
    layout: Layout,
    names: Sequence[str],
    *,
    tracker: Tracker,
    remember: Callable[[list[Host]], None],
) -> list[Host]:
    """Boot hosts side by side and connect them to the switch.

    Args:
        plan: names and addresses.
        layout: file names.
        names: the hosts.
        tracker: which cgroups of its own each host gets.
        remember: writes the hosts down. A host goes on only after that, and ends by itself
            if this command dies earlier, so that none can get lost.

    Raises:
        DevClusterError: a host did not come up; none of `names` is left running then.
    """
    starting = {name: _launch(plan, layout, name, tracker) for name in names}
    hosts: dict[str, Host] = {}
    try:
        for name, process in starting.items():
            hosts[name] = Host(name, said_process(process, name, _log(layout, name)), tracker)
        remember(list(hosts.values()))
        network.plug_in(plan, {name: host.init for name, host in hosts.items()})
        for name, process in starting.items():
            cgroups.create(plan, name, tracker)
            cgroups.join(plan, name, tracker, hosts[name].init.pid)
            say_go(process)
        for name, process in starting.items():
            _expect(process, name, "ready")
    except BaseException:
        kill_and_wait(host.init for host in hosts.values())
        raise
    finally:
        for process in starting.values():
            let_go(process)
    return list(hosts.values())


def _launch(plan: AddressPlan, layout: Layout, name: str, tracker: Tracker) -> subprocess.Popen[str]:
    init_plan: node_init.Plan = {
        "name": name,
        "address": f"{plan.host(name)}/24",
        "hosts": str(layout.hosts),
        "cgroups": cgroups.mounts(tracker),
    }
    program = (sys.executable, "-I", "-S", node_init.__file__, json.dumps(init_plan))
    return start_helper((*UNSHARE, "--", *program), _log(layout, name))


def _log(layout: Layout, name: str) -> Path:
    return layout.logs / f"init-{name}.log"


def _expect(process: subprocess.Popen[str], name: str, word: str) -> None:
    if next_line(process) != word:
        raise DevClusterError(f"{name} did not boot; see init-{name}.log in the log directory.")


def command_in(host: Host, argv: Sequence[str]) -> list[str]:
    """Command line that runs `argv` inside the host."""
    cgroup = ("--cgroup",) if host.tracker.uses_cgroups else ()
    words = cgroups.in_leaf(host.tracker, argv)
    return ["nsenter", "--target", str(host.init.pid), *ENTER, *cgroup, "--", *words]


def enter_cgroups(plan: AddressPlan, host: Host) -> None:
    """Count the calling process, and so its children, as one of the host's."""
    cgroups.join(plan, host.name, host.tracker, os.getpid(), leaf=True)


def start_daemon(
    plan: AddressPlan, host: Host, argv: Sequence[str], log: Path, env: Mapping[str, str], user: str = "root"
) -> None:
    """Start a program inside the host that outlives this command, as a child of its PID 1.

    Args:
        plan: names of the cluster.
        host: where to run it.
        argv: the program; it must stay in the foreground.
        log: file that gets its stdout and stderr.
        env: its environment, in addition to PATH.
        user: who runs it.
    """
    become = () if user == "root" else ("setpriv", "--reuid", user, "--regid", user, "--init-groups")
    # setsid --fork leaves the daemon an orphan, which the host's PID 1 adopts.
    command = command_in(host, ("setsid", "--fork", *become, *argv))
    with log.open("ab") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={"PATH": SYSTEM_PATH, **env},
            preexec_fn=lambda: enter_cgroups(plan, host),
            check=False,
        )
    if done.returncode != 0:
        raise DevClusterError(f"Could not start {argv[0]} on {host.name}; see {log}.")
