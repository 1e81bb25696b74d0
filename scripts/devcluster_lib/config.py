"""Text of the configuration files; no side effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .addresses import CONTROLLER, AddressPlan
from .layout import Layout
from .settings import Auth, Preempt, Settings, Tracker

CONTROLLER_PORT = 6817
EAGER = (
    "bf_interval=1",
    "bf_resolution=1",
    "bf_continue",
    "sched_interval=1",
    "sched_min_interval=0",
    "batch_sched_delay=0",
)
"""Scheduling decisions within a second; a site would spare its slurmctld."""
DATABASE_USER = "slurm"
DATABASE_PASSWORD = "devcluster"  # noqa: S105 - MariaDB listens inside its own namespace only


@dataclass(frozen=True)
class ConfigInputs:
    """All that the configuration depends on.

    Attributes:
        settings: what the user asked for.
        plan: names and addresses.
        layout: file names.
        gpu_files: one character device per GPU; the same files on every node.
        own_devices: the devices are ours, so hiding them from a job hurts nobody.
        first_job_id: grows from start to start, so that sacct never sees an id twice.
        old_cgroups: Slurm is older than 21.08, which has no plugin for each version of cgroups.
    """

    settings: Settings
    plan: AddressPlan
    layout: Layout
    gpu_files: tuple[str, ...]
    own_devices: bool
    first_job_id: int
    old_cgroups: bool = False


def slurm_conf(inputs: ConfigInputs) -> str:
    """Render slurm.conf."""
    sections = (
        _controller(inputs),
        _files(inputs.layout),
        _timing(inputs.settings),
        _scheduling(inputs.settings),
        _tracking(inputs.settings),
        _accounting(inputs),
        _nodes(inputs),
        _partitions(inputs.settings),
        inputs.settings.extra,
    )
    return "\n".join("\n".join(lines) + "\n" for lines in sections if lines)


def _controller(inputs: ConfigInputs) -> Sequence[str]:
    auth = inputs.settings.auth
    socket = f"socket={inputs.layout.munge_socket}," if auth is Auth.MUNGE else ""
    return (
        "ClusterName=dev",
        f"SlurmctldHost={CONTROLLER}({inputs.plan.controller})",
        f"SlurmctldPort={CONTROLLER_PORT}",
        "SlurmUser=slurm",
        "SlurmdUser=root",
        f"AuthType=auth/{auth.value}",
        f"CredType=cred/{auth.value}",
        f"AuthInfo={socket}cred_expire={inputs.settings.cred_expire_s}",
        "MpiDefault=none",
        f"FirstJobId={inputs.first_job_id}",
        "MinJobAge=600",
        "ReturnToService=2",
        "JobRequeue=1",
        "RequeueExit=99",
        "RequeueExitHold=98",
    )


def _files(layout: Layout) -> Sequence[str]:
    return (
        f"StateSaveLocation={layout.controller_state}",
        f"SlurmdSpoolDir={layout.spool}/%n",
        f"SlurmctldPidFile={layout.run}/slurm/slurmctld.pid",
        f"SlurmdPidFile={layout.run}/slurmd-%n.pid",
        f"SlurmctldLogFile={layout.logs}/slurmctld.log",
        f"SlurmdLogFile={layout.logs}/slurmd-%n.log",
        "SlurmctldDebug=debug",
        "SlurmdDebug=debug",
    )


def _timing(settings: Settings) -> Sequence[str]:
    return (
        "SlurmctldTimeout=60",
        f"SlurmdTimeout={settings.slurmd_timeout_s}",
        f"KillWait={settings.kill_wait_s}",
        "InactiveLimit=0",
        "BatchStartTimeout=10",
        "CompleteWait=0",
        "UnkillableStepTimeout=60",
    )


def _scheduling(settings: Settings) -> Sequence[str]:
    kind = "none" if settings.preempt is Preempt.OFF else "partition_prio"
    mode = "SUSPEND,GANG" if settings.preempt is Preempt.SUSPEND else settings.preempt.value
    return (
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={','.join(EAGER)}",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        f"PreemptType=preempt/{kind}",
        f"PreemptMode={mode}",
    )


def _tracking(settings: Settings) -> Sequence[str]:
    task = "cgroup" if settings.tracker.uses_cgroups else "none"
    return (
        f"ProctrackType=proctrack/{settings.tracker.plugin}",
        f"TaskPlugin=task/{task}",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=30",
    )


def _accounting(inputs: ConfigInputs) -> Sequence[str]:
    if not inputs.settings.accounting:
        return ("AccountingStorageType=accounting_storage/none", "JobCompType=jobcomp/none")
    return (
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={inputs.plan.controller}",
        # The link to slurmdbd does not read AuthInfo; without this line slurmctld dies ("no TRES").
        f"AccountingStoragePass={inputs.layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_script",
        "JobCompType=jobcomp/none",
    )


def _nodes(inputs: ConfigInputs) -> Sequence[str]:
    settings = inputs.settings
    shape = (
        f"CPUs={settings.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={settings.cpus} "
        "ThreadsPerCore=1 RealMemory=4000"
    )
    lines = ["SlurmdParameters=config_overrides", "GresTypes=gpu"]
    for name in settings.node_names:
        address = inputs.plan.host(name)
        gres = f" Gres=gpu:{settings.gpus_of(name)}" if settings.gpus_of(name) else ""
        lines.append(f"NodeName={name} NodeAddr={address} {shape}{gres} State=UNKNOWN")
    return lines


def _partitions(settings: Settings) -> Sequence[str]:
    share = "FORCE:1" if settings.preempt is Preempt.SUSPEND else "NO"
    common = f"Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe={share}"

    def low(grace_s: int) -> str:
        if settings.preempt is Preempt.OFF:
            return "PriorityTier=1"
        return f"PriorityTier=1 PreemptMode={settings.preempt.value} GraceTime={grace_s}"

    return (
        f"PartitionName=low Default=YES {common} {low(settings.grace_s)}",
        f"PartitionName=low0 {common} {low(0)}",
        f"PartitionName=high {common} PriorityTier=10 PreemptMode=OFF",
    )


def gres_conf(inputs: ConfigInputs) -> str:
    """Render gres.conf."""
    settings = inputs.settings
    return "".join(
        f"NodeName={name} Name=gpu File={file}\n"
        for name in settings.node_names
        for file in inputs.gpu_files[: settings.gpus_of(name)]
    )


def cgroup_conf(inputs: ConfigInputs) -> str:
    """Render cgroup.conf; devices are hidden from other jobs only under cgroup (version 1) tracking."""
    tracker = inputs.settings.tracker
    hide = tracker is Tracker.CGROUP and inputs.own_devices
    plugin = "v2\nIgnoreSystemd=yes" if tracker is Tracker.CGROUP2 else "v1"
    choice = "" if inputs.old_cgroups else f"CgroupPlugin=cgroup/{plugin}\n"
    return (
        f"{choice}"
        "CgroupMountpoint=/sys/fs/cgroup\n"
        "ConstrainCores=no\n"
        "ConstrainRAMSpace=no\n"
        f"ConstrainDevices={'yes' if hide else 'no'}\n"
    )


def slurmdbd_conf(inputs: ConfigInputs) -> str:
    """Render slurmdbd.conf; it holds a password, so only slurm may read it."""
    layout = inputs.layout
    return (
        "AuthType=auth/munge\n"
        f"AuthInfo=socket={layout.munge_socket}\n"
        f"DbdHost={CONTROLLER}\n"
        f"DbdAddr={inputs.plan.controller}\n"
        "SlurmUser=slurm\n"
        f"PidFile={layout.run}/slurm/slurmdbd.pid\n"
        f"LogFile={layout.logs}/slurmdbd.log\n"
        "StorageType=accounting_storage/mysql\n"
        "StorageHost=127.0.0.1\n"
        f"StorageUser={DATABASE_USER}\n"
        f"StoragePass={DATABASE_PASSWORD}\n"
        "StorageLoc=slurm_acct\n"
    )


def hosts(inputs: ConfigInputs, machine_name: str) -> str:
    """Render the /etc/hosts of every node."""
    names = (CONTROLLER, *inputs.settings.node_names)
    lines = ["127.0.0.1 localhost", f"{inputs.plan.machine} {machine_name}"]
    lines += [f"{inputs.plan.host(name)} {name}" for name in names]
    return "\n".join(lines) + "\n"
