"""Agents without workers: the rendezvous of many nodes in one process."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings, announces_at_once
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, Member, RoundFormed
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.protocol import Store

EPOCH = Epoch(0, 0, 0, 0)
PORT = 29_500


class World(NamedTuple):
    """What all nodes of a measure have in common.

    Attributes:
        paths: the run directory.
        nodes: how many nodes there are.
        known: the nodes know each other's names, as Slurm tells them.
    """

    paths: RunPaths
    nodes: int
    known: bool


def node_name(index: int) -> str:
    """Return a node's name."""
    return f"node{index:04d}"


def member(index: int) -> Member:
    """Return a node's place in a round."""
    name = node_name(index)
    return Member(f"{name}.{1000 + index}", name, 1, "default_role")


def _settings(world: World) -> MeetingSettings:
    return MeetingSettings(min_nodes=world.nodes, max_nodes=world.nodes)


def _expected(world: World) -> tuple[str, ...]:
    return tuple(node_name(index) for index in range(world.nodes)) if world.known else ()


def looking_from_the_start(world: World) -> list[bool]:
    """Return for each node whether it looks at the others before the round: the first of these forms it."""
    settings, expected = _settings(world), _expected(world)
    return [announces_at_once(node_name(index), expected, settings) for index in range(world.nodes)]


def make_run(world: World, index: int, store: Store, clock: Clock | None = None) -> SharedRun:
    """Return one node's hold on the shared state, put together as an agent does."""
    used, settings = clock or SystemClock(), _settings(world)
    name, expected = node_name(index), _expected(world)
    facts = NodeFacts(member(index), host=name, addr=name)
    return SharedRun(
        RunLog(store, used, name, ContentionLock(world.paths.lock, used)),
        Membership(store, used, facts, EPOCH, settings),
        RunFacts("bench", "1" if world.known else "", expected, ""),
        settings,
        RunDeps(used, lambda: None),
    )


def make_rendezvous(world: World, index: int, store: Store) -> SharedFsRendezvous:
    """Return one node's rendezvous, put together as an agent does; it sleeps where an agent waits."""
    clock = SystemClock()
    waiting = Waiting(clock.sleep, lambda: PORT, lambda: False)
    return SharedFsRendezvous(make_run(world, index, store), waiting)


def make_round(world: World) -> RoundFormed:
    """Return the first round, of all nodes."""
    members = tuple(member(index) for index in range(world.nodes))
    return RoundFormed(1, EPOCH, members, node_name(0), PORT, None)
