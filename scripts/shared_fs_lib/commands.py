"""Start, stop and describe a shared file system."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from devcluster_lib import state_file
from devcluster_lib.errors import DevClusterError
from devcluster_lib.processes import ProcessId, kill_and_wait

from . import gluster, launch, nfs, state, switch
from .layout import MAX_CLIENTS, SERVER, Kind, Layout, data_address
from .state import State


def start(layout: Layout, kind: Kind, clients: int) -> float:
    """Bring server and clients up and mount the file system everywhere; running already is fine.

    Returns:
        How long it took [s].

    Raises:
        DevClusterError: something else runs there, or it does not come up; nothing is left running then.
    """
    began = time.monotonic()
    if not 1 <= clients <= MAX_CLIENTS:
        raise DevClusterError(f"--clients must be between 1 and {MAX_CLIENTS}, not {clients}.")
    prepare_root(layout)
    with state_file.locked(layout.lock):
        old = state.read(layout)
        if old is not None and all(old.is_up(name) for name in old.names):
            if (old.kind, old.clients) != (kind, clients):
                raise DevClusterError(
                    f"{old.kind.value} with {old.clients} clients runs in {layout.root}; "
                    "`stop` it or give another --dir."
                )
            return time.monotonic() - began
        if old is not None:
            _tear_down(layout, old)
        new = State(kind, clients)
        state.write(layout, new)
        try:
            _bring_up(layout, new)
        except BaseException:
            _tear_down(layout, state.read(layout) or new)
            raise
    return time.monotonic() - began


def prepare_root(layout: Layout) -> None:
    """Make the directory.

    Raises:
        DevClusterError: it cannot be made, is another user's, or holds something else.
    """
    root = layout.root
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise DevClusterError(f"{root} cannot be made a directory: {why}; give another --dir.") from None
    if root.is_symlink() or root.stat().st_uid != os.geteuid():
        raise DevClusterError(f"{root} is a link or belongs to another user; give another --dir.")
    if not layout.state_file.exists() and any(path != layout.lock for path in root.iterdir()):
        raise DevClusterError(f"{root} is not empty and holds no shared file system; give another --dir.")


def _bring_up(layout: Layout, new: State) -> None:
    _make_directories(layout, new)
    if new.kind.needs_kernel:
        nfs.make_disk(layout)
    switch.build(layout.network)

    def remember(nodes: Mapping[str, ProcessId]) -> None:
        state.write(layout, new.with_nodes(nodes))

    new = new.with_nodes(launch.boot(layout, new.kind, new.names, remember))
    (nfs if new.kind.needs_kernel else gluster).serve(layout, new)
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda client: mount(layout, new, client), new.names[1:]):
            pass


def _make_directories(layout: Layout, new: State) -> None:
    """Make the directories; what an earlier start has stored is forgotten."""
    for path in (layout.served, layout.daemon_state, layout.plans, layout.etc):
        shutil.rmtree(path, ignore_errors=True)
    layout.image.unlink(missing_ok=True)
    for path in (layout.mount_point, layout.results, layout.logs, layout.etc, layout.plans, layout.served):
        path.mkdir(exist_ok=True)
    names = "".join(f"{data_address(name)} {name}\n" for name in new.names)
    (layout.etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (layout.etc / "resolv.conf").write_text("")


def mount(layout: Layout, current: State, client: str) -> None:
    """Mount the file system on a client that was just booted."""
    (nfs if current.kind.needs_kernel else gluster).mount(layout, current, client)


def stop(layout: Layout) -> bool:
    """End everything; logs and results stay.

    Returns:
        Whether there was anything to end.
    """
    if not layout.state_file.exists():
        return False
    with state_file.locked(layout.lock):
        old = state.read(layout)
        if old is None or not old.nodes:
            return False
        _tear_down(layout, old)
    return True


def _tear_down(layout: Layout, old: State) -> None:
    """End whatever is left; safe to repeat."""
    # The clients go first: one that outlives its server waits for it when it is killed.
    clients = [process for name, process in old.nodes.items() if name != SERVER]
    kill_and_wait(clients)
    kill_and_wait([process for name, process in old.nodes.items() if name == SERVER])
    switch.remove(layout.network)
    for path in (layout.daemon_state, layout.plans):
        shutil.rmtree(path, ignore_errors=True)
    layout.image.unlink(missing_ok=True)
    state.write(layout, State(old.kind, old.clients))


def running(layout: Layout) -> State:
    """State of a running file system.

    Raises:
        DevClusterError: there is none.
    """
    current = state.read(layout)
    if current is None or not current.is_up(SERVER):
        raise DevClusterError(f"No file system runs in {layout.root}; `start` one, or give its --dir.")
    return current


def describe(layout: Layout) -> str:
    """Nodes of a running file system, for people."""
    current = running(layout)
    lines = [f"{current.kind.value} at {layout.mount_point} (network namespace {layout.network})"]
    for name in current.names:
        power = "up" if current.is_up(name) else "no power"
        link = "connected" if switch.is_connected(layout.network, name) else "cut off"
        lines.append(f"{name}: {power}, {link}")
    return "\n".join(lines)
