"""What can go wrong: each fault breaks something of a running job, and says how to mend it."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from chaos_lib.disk import Disk
from chaos_lib.processes import Process, Role
from chaos_lib.training import USER, Training
from hpc_elastic.clock import date_text
from tests.real_slurm.cluster import Cluster

SAVED_S = 12.0  # slurmctld writes its state every few seconds
UNNOTICED_S = 8.0  # Slurm gives up no node that is silent for so long


class Scene(NamedTuple):
    """Where a fault strikes."""

    cluster: Cluster
    disk: Disk
    training: Training
    random: random.Random


class Struck(NamedTuple):
    """A fault that has struck."""

    what: str  # whom it hit, for people
    after_s: float = 0.0  # how long it lasts [s]
    mend: Callable[[], object] | None = None  # ends it; None if there is nothing to mend


class NoTargetError(Exception):
    """There is nothing that this fault could hit just now."""


class Fault(NamedTuple):
    """A kind of fault.

    Attributes:
        strike: breaks something.
        weight: how often it is drawn, compared with the others.
        costs_a_restart: it may end a round as a worker's failure.
    """

    strike: Callable[[Scene], Struck]
    weight: int = 2
    costs_a_restart: bool = False


def _one(scene: Scene, role: Role) -> Process:
    found = scene.training.processes(role)
    if not found:
        raise NoTargetError(f"no {role.name.lower()} runs")
    return scene.random.choice(found)


def _node(scene: Scene) -> str:
    """Choose a node that has power and is connected, one with an agent if there is one."""
    broken = set(_broken(scene.cluster))
    busy = sorted({process.node for process in scene.training.processes(Role.AGENT)} - broken)
    if not busy:
        raise NoTargetError("no node with an agent is whole")
    return scene.random.choice(busy)


def _broken(cluster: Cluster) -> list[str]:
    """Return the nodes that have crashed, are cut off or have no slurmd."""
    lines = (line.partition(": ") for line in cluster.command("status").splitlines())
    return [
        name for name, _, text in lines if name in cluster.node_names and "up, connected, slurmd" not in text
    ]


def _silent(cluster: Cluster) -> list[str]:
    """Return the nodes that slurmctld has not heard of lately, as one that was cut off until just now."""
    lines = cluster.as_root("sinfo", "--noheader", "--Node", "--format=%n %t").splitlines()
    return [node for node, _, state in (line.strip().partition(" ") for line in lines) if state.endswith("*")]


def _calm(scene: Scene) -> None:
    """Refuse to end the job while a node is broken, and the other way round.

    slurmctld (22.05) loses the GPUs of a job of which a node dies while it completes: they are nobody's
    until slurmctld starts anew, and nothing that wants them can start.

    Raises:
        NoTargetError: both would come together.
    """
    if broken := {*_broken(scene.cluster), *_silent(scene.cluster)}:
        raise NoTargetError(f"Slurm may not have given up {', '.join(sorted(broken))} yet")
    job = scene.training.job()
    if job.get("JobState") not in ("RUNNING", "PENDING"):
        raise NoTargetError(f"the job is {job.get('JobState')}")
    if job.get("PreemptTime", "None") != "None":
        raise NoTargetError("the job is being preempted")


def _lasts(scene: Scene, low: float, high: float) -> float:
    return round(scene.random.uniform(low, high), 1)


def _silence(scene: Scene, low: float, high: float) -> tuple[str, float]:
    """Choose a node of which slurmctld is to hear nothing, and for how long [s].

    Raises:
        NoTargetError: Slurm may give the node up for it, and it must not just now; see `_calm`.
    """
    node, lasts = _node(scene), _lasts(scene, low, high)
    if lasts > UNNOTICED_S:
        _calm(scene)
    return node, lasts


def _kill_worker(scene: Scene) -> Struck:
    victim = _one(scene, Role.WORKER)
    number = scene.random.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
    victim.send(number)
    return Struck(f"{number.name} to a worker on {victim.node}")


def _kill_agent(scene: Scene) -> Struck:
    victim = _one(scene, Role.AGENT)
    victim.send(signal.SIGKILL)
    return Struck(f"on {victim.node}")


def _kill_guard(scene: Scene) -> Struck:
    victim = _one(scene, Role.GUARD)
    victim.send(signal.SIGKILL)
    return Struck(f"on {victim.node}")


def _freeze_agent(scene: Scene) -> Struck:
    victim = _one(scene, Role.AGENT)
    victim.send(signal.SIGSTOP)
    lasts = _lasts(scene, 1, 12)
    return Struck(f"on {victim.node} for {lasts} s", lasts, lambda: victim.send(signal.SIGCONT))


def _kill_srun(scene: Scene) -> Struck:
    found = scene.training.processes(Role.SRUN)
    if not found:
        raise NoTargetError("no srun runs")
    found[0].send(signal.SIGKILL)
    return Struck(f"on {found[0].node}")


def _kill_batch(scene: Scene) -> Struck:
    _calm(scene)
    victim = _one(scene, Role.BATCH)
    victim.send(signal.SIGKILL)
    return Struck(f"on {victim.node}")


def _crash_node(scene: Scene) -> Struck:
    _calm(scene)
    node, lasts = _node(scene), _lasts(scene, 3, 30)
    scene.cluster.crash(node)
    return Struck(f"{node} for {lasts} s", lasts, lambda: scene.cluster.boot(node))


def _cut_node(scene: Scene) -> Struck:
    node, lasts = _silence(scene, 3, 30)
    scene.cluster.cut(node)
    return Struck(f"{node} for {lasts} s", lasts, lambda: scene.cluster.heal(node))


def _preempt(scene: Scene) -> Struck:
    _calm(scene)
    nodes = scene.random.randint(1, scene.cluster.nodes)
    lasts = _lasts(scene, 3, 15)
    words = ("--partition=high", f"--nodes={nodes}", "--exclusive", "--time=1")
    job = scene.cluster.submit("bob", *words, wrap=f"sleep {lasts}")
    return Struck(f"{nodes} nodes for {lasts} s", lasts + 20, lambda: scene.cluster.as_root("scancel", job))


def _requeue(scene: Scene) -> Struck:
    _calm(scene)
    done = scene.cluster.run(USER, ["scontrol", "requeue", scene.training.job_id])
    if done.returncode != 0:
        raise NoTargetError(f"scontrol requeue: {done.stderr.strip()}")
    return Struck(f"job {scene.training.job_id}")


def _kill_slurmctld(scene: Scene) -> Struck:
    """Kill it, but not while it may not have saved that it started the job: it would start it twice."""
    job = scene.training.job()
    started = job.get("StartTime", "Unknown")
    if job.get("JobState") != "RUNNING" or started > date_text(time.time() - SAVED_S).replace(" ", "T"):
        raise NoTargetError("slurmctld may not have saved the start of the job yet")
    scene.cluster.command("kill-slurmctld")
    lasts = _lasts(scene, 2, 20)
    return Struck(f"for {lasts} s", lasts, lambda: scene.cluster.command("start-slurmctld"))


def _kill_slurmd(scene: Scene) -> Struck:
    node, lasts = _silence(scene, 2, 25)
    scene.cluster.command("kill-slurmd", node)
    return Struck(f"{node} for {lasts} s", lasts, lambda: scene.cluster.command("start-slurmd", node))


def _stall(scene: Scene) -> Struck:
    lasts = _lasts(scene, 1, 12)
    scene.disk.stall()
    # by itself, since whoever is to end the stall may be caught in it
    threading.Timer(lasts, scene.disk.go_on).start()
    return Struck(f"for {lasts} s", lasts, scene.disk.go_on)


def _fill(scene: Scene) -> Struck:
    lasts = _lasts(scene, 1, 12)
    scene.disk.fill()
    return Struck(f"for {lasts} s", lasts, scene.disk.free)


FAULTS: Mapping[str, Fault] = {
    "worker-kill": Fault(_kill_worker, 3, costs_a_restart=True),
    "agent-kill": Fault(_kill_agent, 3),
    "guard-kill": Fault(_kill_guard, 1),
    "agent-freeze": Fault(_freeze_agent),
    "srun-kill": Fault(_kill_srun),
    "batch-kill": Fault(_kill_batch, 1),
    "node-crash": Fault(_crash_node, 3),
    "node-cut": Fault(_cut_node, 3),
    "preemption": Fault(_preempt, 3),
    "requeue": Fault(_requeue),
    "slurmctld-kill": Fault(_kill_slurmctld),
    "slurmd-kill": Fault(_kill_slurmd),
    "fs-stall": Fault(_stall, 3),
    "disk-full": Fault(_fill, 2, costs_a_restart=True),
}
STALLS = ("fs-stall",)
NEEDS_A_DISK = ("node-crash", "disk-full")  # cannot be done while the disk stalls
