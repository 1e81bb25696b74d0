"""Break nodes and mend them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from . import network, state_file
from .addresses import CONTROLLER, AddressPlan
from .cluster import boot_hosts, running
from .daemons import Daemons
from .errors import DevClusterError
from .layout import Layout
from .namespaces import Host, command_in, enter_cgroups
from .processes import SYSTEM_PATH, children, kill_and_wait, wait_until
from .state import State


def crash(layout: Layout, name: str) -> None:
    """Power loss: the link goes first, so that nobody hears a last word of the dying processes."""
    with state_file.locked(layout.lock):
        _, plan, node = _live_node(layout, name)
        network.set_port(plan, name, up=False)
        kill_and_wait([node.init])


def cut(layout: Layout, name: str) -> None:
    """Network partition: the node runs on, alone."""
    _, plan, _ = _live_node(layout, name)
    network.set_port(plan, name, up=False)


def heal(layout: Layout, name: str) -> None:
    """End a partition."""
    _, plan, _ = _live_node(layout, name)
    network.set_port(plan, name, up=True)


def power_on(layout: Layout, name: str) -> None:
    """Boot a crashed node: new namespaces, same name and address, slurmd started."""
    with state_file.locked(layout.lock):
        current, plan = _known_node(layout, name)
        if current.host(name) is not None:
            raise DevClusterError(f"{name} is running; `crash` it first.")
        hosts = boot_hosts(layout, current, plan, [name])
        _daemons(layout, current, plan).start_slurmd(hosts[0])


def kill_slurmd(layout: Layout, name: str) -> None:
    """SIGKILL slurmd; jobs on the node run on."""
    _, _, node = _live_node(layout, name)
    found = children(node.init, "slurmd")
    if not found:
        raise DevClusterError(f"slurmd does not run on {name}; `start-slurmd {name}` starts it.")
    kill_and_wait(found)


def start_slurmd(layout: Layout, name: str) -> None:
    """Start slurmd where it was killed."""
    current, plan, node = _live_node(layout, name)
    if children(node.init, "slurmd"):
        raise DevClusterError(f"slurmd runs on {name} already; `kill-slurmd {name}` ends it.")
    _daemons(layout, current, plan).start_slurmd(node)
    wait_until(lambda: bool(children(node.init, "slurmd")), 5, f"slurmd did not start on {name}.")


def kill_slurmctld(layout: Layout) -> None:
    """SIGKILL slurmctld; the nodes and their jobs go on without it."""
    current, _ = running(layout)
    found = children(current.inits[CONTROLLER], "slurmctld")
    if not found:
        raise DevClusterError("slurmctld does not run; `start-slurmctld` starts it.")
    kill_and_wait(found)


def start_slurmctld(layout: Layout) -> None:
    """Start slurmctld where it was killed; it knows its jobs from its state directory."""
    current, plan = running(layout)
    if children(current.inits[CONTROLLER], "slurmctld"):
        raise DevClusterError("slurmctld runs already; `kill-slurmctld` ends it.")
    _daemons(layout, current, plan).start_slurmctld()


def execute(layout: Layout, name: str, argv: Sequence[str]) -> NoReturn:
    """Become a root process on a node (or on `ctl`), in the caller's directory."""
    _, plan, host = _live_node(layout, name, controller_too=True)
    enter_cgroups(plan, host)
    # nsenter ends up in /, so env goes back to where the user was.
    command = command_in(host, ("env", f"--chdir={os.getcwd()}", *argv))
    env = {**os.environ, "SLURM_CONF": str(layout.slurm_conf)}
    env["PATH"] = f"{env.get('PATH', '')}:{SYSTEM_PATH}".lstrip(":")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvpe(command[0], command, env)  # noqa: S606 - the exit code of the command becomes ours


def _known_node(layout: Layout, name: str, *, controller_too: bool = False) -> tuple[State, AddressPlan]:
    current, plan = running(layout)
    names = current.settings.node_names + ((CONTROLLER,) if controller_too else ())
    if name not in names:
        raise DevClusterError(f"There is no node {name!r}; this cluster has {', '.join(names)}.")
    return current, plan


def _live_node(layout: Layout, name: str, *, controller_too: bool = False) -> tuple[State, AddressPlan, Host]:
    current, plan = _known_node(layout, name, controller_too=controller_too)
    host = current.host(name)
    if host is None:
        raise DevClusterError(f"{name} has crashed; `boot {name}` starts it again.")
    return current, plan, host


def _daemons(layout: Layout, current: State, plan: AddressPlan) -> Daemons:
    controller = current.host(CONTROLLER)
    if controller is None:
        raise DevClusterError(f"The cluster in {layout.root} is being stopped.")
    return Daemons(plan, layout, controller)
