"""Who starts, who waits for what, and who makes room, in the fake Slurm."""

from __future__ import annotations

import pytest

from hpc_elastic.testing.fake_slurm.cluster import schedule
from hpc_elastic.testing.fake_slurm.cluster.endings import Turn
from hpc_elastic.testing.fake_slurm.cluster.model import Job, JobRequest, Settings, Share, State, World

NOW = 1000.0
SETTINGS = Settings(start_delay=0, nodes=4, cpus=4, gpus=2)


def world_of(*requests: JobRequest, **fields: object) -> World:
    """Return a cluster with jobs 1, 2, ... as they are queued."""
    world = World.new(SETTINGS)
    for number, request in enumerate(requests, 1):
        array = {"array": 1, "task": number - 1} if request.array else {}
        world = world.with_job(Job(number, request, NOW, NOW, number, **array)._replace(**fields))  # type: ignore[arg-type]
    return world


def scheduled(world: World) -> World:
    """Return the world after one look at the queue."""
    turn = Turn(world, NOW)
    schedule.schedule(turn)
    return turn.world


def states(world: World) -> list[str]:
    """Return state or reason of each job."""
    return [job.reason if job.state is State.PENDING else job.state.value for job in world.jobs.values()]


def test_jobs_share_nodes_by_cpus_and_gpus() -> None:
    """Each gets devices of its own; who does not fit waits for resources."""
    one = JobRequest(gpus_per_node=1, cpus_per_task=2)
    world = scheduled(world_of(*[one] * 9))
    assert ["RUNNING"] * 8 + ["Resources"] == states(world)
    assert [{"node1": Share(2, (0,))}, {"node1": Share(2, (1,))}] == [world.jobs[n].shares for n in (1, 2)]


def test_a_range_of_nodes_takes_what_is_free() -> None:
    """The most that is free at this moment."""
    world = scheduled(world_of(JobRequest(exclusive=True), JobRequest(min_nodes=2, max_nodes=4)))
    assert ("node2", "node3", "node4") == world.jobs[2].nodes


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (JobRequest(min_nodes=5, max_nodes=5), "PartitionNodeLimit"),
        (JobRequest(hold=True), "JobHeldUser"),
        (JobRequest(dependency="afterok:1"), "Dependency"),
        (JobRequest(nodelist=("node9",)), "ReqNodeNotAvail,_UnavailableNodes:node9"),
        (JobRequest(begin_s=60), "BeginTime"),
    ],
)
def test_who_waits_says_why(request_: JobRequest, reason: str) -> None:
    """The reasons are Slurm's."""
    world = world_of(JobRequest(), request_)
    waiting = world.jobs[2]._replace(held=request_.hold, eligible_s=NOW + request_.begin_s)
    assert ["RUNNING", reason] == states(scheduled(world.with_job(waiting)))


def test_dependencies_wait_for_final_states() -> None:
    """A failed job frees afternotok and afterany, and blocks afterok for ever."""
    kinds = ("afterok:1", "afternotok:1", "afterany:1", "singleton")
    world = world_of(JobRequest(name="a"), *[JobRequest(name="a", dependency=kind) for kind in kinds])
    assert ["RUNNING", *["Dependency"] * 4] == states(scheduled(world))
    failed = world.with_job(world.jobs[1]._replace(state=State.FAILED))
    assert ["DependencyNeverSatisfied", "RUNNING", "RUNNING", "Dependency"] == states(scheduled(failed))[1:]


def test_an_array_runs_as_many_tasks_as_it_may() -> None:
    """ArrayTaskThrottle holds the others back."""
    world = scheduled(world_of(*[JobRequest(array=(0, 1, 2), throttle=2)] * 3))
    assert ["RUNNING", "RUNNING", "JobArrayTaskLimit"] == states(world)


def test_a_higher_tier_takes_the_fewest_jobs_that_suffice() -> None:
    """The youngest goes first; nodes that become free are kept for who preempted, not for who is put back."""
    low = JobRequest(exclusive=True, requeue=True)
    world = scheduled(world_of(low, low, low, low))
    world = world.with_job(world.jobs[3]._replace(start_s=NOW + 1))
    high = Job(9, JobRequest(partition="high", exclusive=True), NOW, NOW, 9)
    world = scheduled(world.with_job(high))
    assert [3] == [job.id for job in world.jobs.values() if job.in_grace]
    assert "Resources" == world.jobs[9].reason
    again = scheduled(world.with_job(Job(10, low, NOW, NOW, 10)))
    assert [3] == [job.id for job in again.jobs.values() if job.in_grace]
    assert "Priority" == again.jobs[10].reason or State.PENDING is again.jobs[10].state


def test_drained_nodes_take_no_job() -> None:
    """Those of a job that wants more nodes than are in order are named by the reason."""
    world = world_of(JobRequest(min_nodes=4, max_nodes=4))
    world = scheduled(world.with_node(world.nodes["node2"]._replace(drained=True)))
    assert [schedule.NODES_DOWN] == states(world)


@pytest.mark.parametrize(("text", "found"), [("1", [1, 2, 3]), ("1_1", [2]), ("1_[0,2]", [1, 3]), ("7", [])])
def test_jobs_are_named_as_slurm_names_them(text: str, found: list[int]) -> None:
    """The id of an array stands for all its tasks."""
    world = world_of(*[JobRequest(array=(0, 1, 2))] * 3)
    assert found == [job.id for job in schedule.find_jobs(world, text)]
