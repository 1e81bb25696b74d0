"""Break clients and the server, and mend them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster_lib import state_file
from devcluster_lib.errors import DevClusterError
from devcluster_lib.processes import ProcessId, children, kill_and_wait

from . import commands, exec_client, launch, state, switch
from .layout import SERVER, Layout, client_name
from .state import State

KERNEL = "linux.uml"


def execute(layout: Layout, client: int, argv: Sequence[str]) -> int:
    """Run a program on a client, in the caller's directory; returns its exit code."""
    name, current = _live_client(layout, client)
    return exec_client.attach(layout, name, current.nodes[name], argv)


def freeze(layout: Layout, client: int) -> None:
    """Stop all that runs on a client; its link stays."""
    name, current = _live_client(layout, client)
    _freeze(current, name)


def thaw(layout: Layout, client: int) -> None:
    """Let a frozen client run on; it does not know that it was away."""
    name, current = _live_client(layout, client)
    _thaw(current, name)


def freeze_server(layout: Layout) -> None:
    """Stall the file system: every access hangs until `thaw_server`."""
    _freeze(commands.running(layout), SERVER)


def thaw_server(layout: Layout) -> None:
    """End a stall."""
    _thaw(commands.running(layout), SERVER)


def cut(layout: Layout, client: int) -> None:
    """Network partition: the client runs on, alone."""
    name, _ = _live_client(layout, client)
    switch.set_port(layout.network, name, up=False)


def heal(layout: Layout, client: int) -> None:
    """End a partition."""
    name, _ = _live_client(layout, client)
    switch.set_port(layout.network, name, up=True)


def kill(layout: Layout, client: int) -> None:
    """Power loss: the link goes first, so that nobody hears a last word of the dying processes."""
    with state_file.locked(layout.lock):
        name, current = _live_client(layout, client)
        switch.set_port(layout.network, name, up=False)
        kill_and_wait([current.nodes[name]])


def boot(layout: Layout, client: int) -> None:
    """Boot a client that lost its power, with the file system mounted."""
    with state_file.locked(layout.lock):
        name, current = _known_client(layout, client)
        if current.is_up(name):
            raise DevClusterError(f"Client {client} is running; `kill {client}` it first.")

        def remember(nodes: Mapping[str, ProcessId]) -> None:
            state.write(layout, current.with_nodes(nodes))

        nodes = launch.boot(layout, current.kind, [name], remember)
        commands.mount(layout, current.with_nodes(nodes), name)


def _freeze(current: State, name: str) -> None:
    """Stop a node; for namespaces, again until no process is left that started meanwhile."""
    power = current.nodes[name]
    if current.kind.needs_kernel:
        # All its programs are traced by this one process, and stop at their next system call.
        for kernel in children(power, KERNEL):
            kernel.send(signal.SIGSTOP)
        return
    stopped: set[ProcessId] = set()
    while found := set(_processes_of(power)) - stopped:
        for process in found:
            process.send(signal.SIGSTOP)
        stopped |= found


def _thaw(current: State, name: str) -> None:
    power = current.nodes[name]
    everyone = children(power, KERNEL) if current.kind.needs_kernel else _processes_of(power)
    for process in everyone:
        process.send(signal.SIGCONT)


def _processes_of(power: ProcessId) -> list[ProcessId]:
    """Every process in the PID namespace of a node's first one."""
    space = os.readlink(f"/proc/{power.pid}/ns/pid")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            here = os.readlink(entry / "ns" / "pid")
        except OSError:  # gone meanwhile, or a zombie
            continue
        process = ProcessId.of(int(entry.name))
        if here == space and process is not None:
            found.append(process)
    return found


def _known_client(layout: Layout, client: int) -> tuple[str, State]:
    current = commands.running(layout)
    if not 1 <= client <= current.clients:
        raise DevClusterError(f"There is no client {client}; there are 1 to {current.clients}.")
    return client_name(client), current


def _live_client(layout: Layout, client: int) -> tuple[str, State]:
    name, current = _known_client(layout, client)
    if not current.is_up(name):
        raise DevClusterError(f"Client {client} has no power; `boot {client}` starts it again.")
    return name, current
