"""The measures: each breaks something of a running job and tells how long it took to get over it."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from chaos_lib.processes import Process, Role
from devcluster_lib import faults as cluster_faults
from devcluster_lib.layout import Layout

from faults_lib.job import Job, Launcher, MeasureError, Shape
from hpc_elastic.record.journal import DrainRequested, EpochStarted, NodeLeft, Requeued, RoundEnded
from tests.real_slurm.cluster import Cluster

SETTLE_S = 1.0
TRIES = 2
SLOW_REPETITIONS = 3  # of what takes a minute
NEVER_S = 60.0  # who has done nothing by then is not waited for


class Sample(NamedTuple):
    """One repetition; times from the fault on [s], None where there is no such moment.

    Attributes:
        noticed: the first record of it.
        acted: the last of the other workers has ended, or was told to stop.
        running: the last worker of the next world runs; or all have ended, if that is what is waited for.
        slurm: of this, what passed between the job's requeue and its next start.
    """

    noticed: float | None = None
    acted: float | None = None
    running: float | None = None
    slurm: float | None = None


class Place(NamedTuple):
    """Where and how often is measured."""

    cluster: Cluster
    launcher: Launcher
    repetitions: int


Samples = Iterator[Sample]


def _settle() -> None:
    time.sleep(SETTLE_S)


def _noticed(job: Job, began: float) -> float | None:
    if job.launcher is not Launcher.OURS:
        return None
    moments = [job.record_at(kind, began) for kind in (RoundEnded, DrainRequested, NodeLeft)]
    return min((moment - began for moment in moments if moment is not None), default=None)


def _slurm_part(job: Job, began: float) -> float | None:
    if job.launcher is not Launcher.OURS:
        return None
    requeued, started = job.record_at(Requeued, began), job.record_at(EpochStarted, began)
    return None if requeued is None or started is None else started - requeued


def _after(job: Job, began: float, others: list[Process], nodes: int, limit_s: float = 90.0) -> Sample:
    """Follow a job from a fault to its next world."""
    acted = job.wait_gone(others, limit_s) - began
    running = job.wait_world(began, nodes, limit_s) - began
    return Sample(_noticed(job, began), acted, running, _slurm_part(job, began))


def _kill_workers(place: Place, number: signal.Signals) -> Samples:
    with Job(place.cluster, place.launcher, Shape(nodes=3, least=3)) as job:
        for repetition in range(place.repetitions):
            _settle()
            workers = job.processes(Role.WORKER)
            victim = workers[repetition % len(workers)]
            began = time.monotonic()
            victim.send(number)
            yield _after(job, began, workers, nodes=3)


def worker_killed(place: Place) -> Samples:
    """SIGKILL of one of six workers on three nodes -> six workers run again."""
    return _kill_workers(place, signal.SIGKILL)


def worker_exits(place: Place) -> Samples:
    """One of six workers ends with exit code 1 -> six workers run again."""
    return _kill_workers(place, signal.SIGUSR1)


def agent_killed(place: Place) -> Samples:
    """SIGKILL of an agent other than the first -> the workers of the other nodes run again."""

    def kill(job: Job, node: str) -> float:
        agents = [agent for agent in job.processes(Role.AGENT) if agent.node == node]
        began = time.monotonic()
        for agent in agents:
            agent.send(signal.SIGKILL)
        return began

    return _lose_nodes(place, kill)


def node_crashed(place: Place) -> Samples:
    """Power loss of a node other than the first -> the workers of the other nodes run again."""

    def crash(job: Job, node: str) -> float:
        began = time.monotonic()
        cluster_faults.crash(Layout(job.cluster.directory), node)
        return began

    return _lose_nodes(place, crash)


def _lose_nodes(place: Place, lose: Callable[[Job, str], float]) -> Samples:
    for _ in range(-(-place.repetitions // 2)):
        with Job(place.cluster, place.launcher, Shape(nodes=4, least=1)) as job:
            for left in (3, 2):
                _settle()
                workers = job.processes(Role.WORKER)
                node = max(worker.node for worker in workers)
                began = lose(job, node)
                others = [worker for worker in workers if worker.node != node]
                yield _after(job, began, others, nodes=left)


def batch_host_crashed(place: Place) -> Samples:
    """Power loss of the node with the batch script -> the requeued job's workers run on other nodes."""
    for _ in range(min(place.repetitions, SLOW_REPETITIONS)):
        with Job(place.cluster, place.launcher, Shape(nodes=3, least=3)) as job:
            _settle()
            workers = job.processes(Role.WORKER)
            host = place.cluster.job(job.job_id)["BatchHost"]
            began = time.monotonic()
            cluster_faults.crash(Layout(place.cluster.directory), host)
            yield _after(job, began, workers, nodes=3, limit_s=150)


def srun_killed(place: Place) -> Samples:
    """SIGKILL of srun -> the workers run again in the same start of the job."""
    for _ in range(place.repetitions):
        with Job(place.cluster, place.launcher, Shape(nodes=3, least=3)) as job:
            _settle()
            workers = job.processes(Role.WORKER)
            began = time.monotonic()
            job.processes(Role.SRUN)[0].send(signal.SIGKILL)
            yield _after(job, began, workers, nodes=3)


def preemption_told(place: Place) -> Samples:
    """SIGTERM reaches the agents of three nodes, as in a preemption -> all workers are told to stop."""
    return _told(place, signal.SIGTERM)


def warning_told(place: Place) -> Samples:
    """SIGUSR1 reaches the agents of three nodes, as ahead of the limit -> all workers are told to stop."""
    return _told(place, signal.SIGUSR1)


def _told(place: Place, number: signal.Signals) -> Samples:
    with Job(place.cluster, place.launcher, Shape(nodes=3, least=3)) as job:
        for _ in range(place.repetitions):
            _settle()
            agents = job.processes(Role.AGENT)
            began = time.monotonic()
            for agent in agents:
                agent.send(number)
            told = job.wait_told(began, 3) - began
            running = job.wait_world(began, 3) - began
            yield Sample(_noticed(job, began), told, running, _slurm_part(job, began))


def preempted(place: Place) -> Samples:
    """Another user's job takes a node for a second -> the requeued job's workers run again."""
    with Job(place.cluster, place.launcher, Shape(nodes=3, least=3)) as job:
        for _ in range(place.repetitions):
            _settle()
            workers = job.processes(Role.WORKER)
            busy = ",".join(sorted({worker.node for worker in workers}))
            began = time.monotonic()
            words = ("--partition=high", "--nodes=3", f"--nodelist={busy}", "--exclusive", "--time=1")
            place.cluster.submit("bob", *words, wrap="sleep 1")
            yield _after(job, began, workers, nodes=3)


def hung(place: Place) -> Samples:
    """A worker makes no further step, with a hang timeout of 5 s -> all workers run again."""
    with Job(place.cluster, place.launcher, Shape(3, 3, flags=("--hang-timeout", "5s"))) as job:
        for _ in range(place.repetitions):
            time.sleep(3 * SETTLE_S)
            workers = job.processes(Role.WORKER)
            began = time.monotonic()
            workers[-1].send(signal.SIGUSR2)
            yield _after(job, began, workers, nodes=3)


def failed_for_good(place: Place) -> Samples:
    """A worker is killed and no restart is left -> the agents of all three nodes have ended."""
    for _ in range(place.repetitions):
        with Job(place.cluster, place.launcher, Shape(nodes=3, least=3, max_restarts=0)) as job:
            _settle()
            workers, agents = job.processes(Role.WORKER), job.processes(Role.AGENT)
            began = time.monotonic()
            workers[-1].send(signal.SIGKILL)
            acted = job.wait_gone(workers, NEVER_S) - began
            yield Sample(_noticed(job, began), acted, job.wait_gone(agents, NEVER_S) - began)


MEASURES: Mapping[str, Callable[[Place], Samples]] = {
    "worker-killed": worker_killed,
    "worker-exits": worker_exits,
    "agent-killed": agent_killed,
    "node-crashed": node_crashed,
    "batch-host-crashed": batch_host_crashed,
    "srun-killed": srun_killed,
    "preemption-told": preemption_told,
    "warning-told": warning_told,
    "preempted": preempted,
    "hung": hung,
    "failed-for-good": failed_for_good,
}
WITH_TORCHRUN = ("worker-killed", "worker-exits", "agent-killed", "node-crashed", "failed-for-good")
"""What torchrun can get over by itself; the rest needs what only a job of ours has."""


def measure(name: str, place: Place) -> tuple[list[Sample], list[str]]:
    """Take a measure; where a job did not do what was waited for, a second one has another try.

    Returns:
        What was measured, and what went wrong, in words.
    """
    found: list[Sample] = []
    failures: list[str] = []
    for _ in range(TRIES):
        rest = place._replace(repetitions=place.repetitions - len(found))
        try:
            for sample in itertools.islice(MEASURES[name](rest), rest.repetitions):
                found.append(sample)  # noqa: PERF402 - counts although a later one may fail
        except (MeasureError, LookupError) as error:
            failures.append(f"{name}, {place.launcher.value}: {error!r}")
        else:
            break
        if place.launcher is not Launcher.OURS:
            break
    return found, failures
