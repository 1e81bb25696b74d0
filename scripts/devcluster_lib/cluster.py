"""Start, stop and describe a cluster."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace

from . import cgroups, config, daemons, files, namespaces, network, packages, state, state_file
from .addresses import CONTROLLER, AddressPlan
from .daemons import Daemons
from .errors import DevClusterError
from .layout import Layout
from .namespaces import Host
from .processes import SYSTEM_PATH, children, kill_and_wait, wait_until
from .settings import Auth, Settings, Tracker
from .state import State

JOB_ID_STEP = 1000
"""Distance of the first job ids of two starts."""


def start(layout: Layout, settings: Settings) -> float:
    """Bring a cluster up and wait until all its nodes are idle.

    Returns:
        How long it took [s].

    Raises:
        DevClusterError: it is running already, or does not come up; nothing is left running then.
    """
    began = time.monotonic()
    files.prepare_root(layout)
    with state_file.locked(layout.lock):
        old = state.read(layout)
        if old is not None and old.is_running():
            raise DevClusterError(
                f"A cluster is already running in {layout.root}; `stop` it or give another --dir."
            )
        if old is not None:
            tear_down(layout, old)
        cgroups.check(settings.tracker, packages.slurm_release())
        packages.check_auth(settings.auth)
        plan = network.claim(layout.root)
        new = State(settings, plan, {}, (old.first_job_id if old else 0) + JOB_ID_STEP)
        state.write(layout, new)
        try:
            _bring_up(layout, new, plan)
        except BaseException:
            tear_down(layout, state.read(layout) or new)
            raise
    return time.monotonic() - began


def _bring_up(layout: Layout, new: State, plan: AddressPlan) -> None:
    settings = new.settings
    files.create_users(settings.users)
    files.create_directories(layout, accounting=settings.accounting)
    gpu_files, own_devices = files.make_gpus(layout, settings.gpus)
    old = packages.slurm_release() < cgroups.PLUGINS_SINCE
    files.write_config(
        config.ConfigInputs(settings, plan, layout, gpu_files, own_devices, new.first_job_id, old_cgroups=old)
    )
    network.build_switch(plan)
    with daemons.database_ready(layout, wanted=settings.accounting):  # takes seconds, hence meanwhile
        controller, *nodes = _boot_all(layout, new, plan)
    parts = Daemons(plan, layout, controller)
    if settings.auth is Auth.MUNGE:
        parts.start_munged()
    if settings.accounting:
        parts.start_database()
    parts.start_slurmctld()
    for node in nodes:
        parts.start_slurmd(node)
    wait_until(
        lambda: idle_nodes(layout) == set(settings.node_names),
        40,
        f"The nodes did not come up; see {layout.logs}/slurmctld.log and slurmd-node*.log.",
    )
    if settings.accounting:
        parts.register_users(settings.users)


def _boot_all(layout: Layout, new: State, plan: AddressPlan) -> list[Host]:
    """Boot the controller and the nodes."""
    controller = boot_hosts(layout, new, plan, [CONTROLLER])
    new = new.with_hosts(controller)
    return controller + boot_hosts(layout, new, plan, new.settings.node_names)


def boot_hosts(layout: Layout, current: State, plan: AddressPlan, names: Sequence[str]) -> list[Host]:
    """Boot hosts and record them in the cluster's state."""

    def remember(hosts: list[Host]) -> None:
        state.write(layout, current.with_hosts(hosts))

    tracker = Tracker.LINUXPROC if CONTROLLER in names else current.settings.tracker
    return namespaces.boot(plan, layout, names, tracker=tracker, remember=remember)


def stop(layout: Layout) -> bool:
    """End everything of the cluster; its logs, shared directory and accounting data stay.

    Returns:
        Whether there was anything to end.
    """
    if not layout.state_file.exists():
        return False
    with state_file.locked(layout.lock):
        old = state.read(layout)
        if old is None or old.plan is None:
            return False
        tear_down(layout, old)
    return True


def purge(layout: Layout) -> bool:
    """Stop the cluster and delete its directory.

    Returns:
        Whether there was a cluster directory.
    """
    if not layout.state_file.exists():
        return False
    stop(layout)
    shutil.rmtree(layout.root)
    return True


def tear_down(layout: Layout, old: State) -> None:
    """End whatever is left of a cluster; safe to repeat."""
    if old.plan is None:
        return
    controller = old.host(CONTROLLER)
    if controller is not None and old.settings.accounting:
        Daemons(old.plan, layout, controller).stop_database()
    kill_and_wait(old.inits.values())
    network.release(old.plan)
    for name in old.settings.node_names:
        cgroups.remove(old.plan, name, old.settings.tracker)
    files.wipe_jobs(layout)
    state.write(layout, replace(old, plan=None, inits={}))


def running(layout: Layout) -> tuple[State, AddressPlan]:
    """State and addresses of a running cluster.

    Raises:
        DevClusterError: there is none.
    """
    current = state.read(layout)
    if current is None or current.plan is None or not current.is_running():
        raise DevClusterError(f"No cluster is running in {layout.root}; `start` one, or give its --dir.")
    return current, current.plan


def client(layout: Layout, *argv: str) -> str:
    """Output of a Slurm client program; empty if it fails."""
    env = {"PATH": SYSTEM_PATH, "LC_ALL": "C", "SLURM_CONF": str(layout.slurm_conf)}
    done = subprocess.run(argv, env=env, capture_output=True, check=False)
    return done.stdout.decode(errors="backslashreplace")  # names of jobs need be no text


def idle_nodes(layout: Layout) -> set[str]:
    """Nodes that Slurm would give to a job now."""
    return set(client(layout, "sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split())


def describe(layout: Layout) -> str:
    """Nodes, queue and settings of a running cluster, for people."""
    current, plan = running(layout)
    ports = network.ports_up(plan)
    lines = [f"cluster in {layout.root} ({plan.tag}, {plan.subnet})", ""]
    for name in current.settings.node_names:
        host = current.host(name)
        power = "up" if host else "crashed"
        link = "connected" if ports.get(name) else "cut off"
        slurmd = "slurmd runs" if host and children(host.init, "slurmd") else "no slurmd"
        lines.append(f"{name}: {power}, {link}, {slurmd}")
    settings = ", ".join(f"{key}={value}" for key, value in current.settings.to_json().items())
    lines += ["", f"settings: {settings}", ""]
    lines += [client(layout, "sinfo", "--Node", "--long"), client(layout, "squeue", "--all")]
    return "\n".join(lines)
