"""Real agents on separate clients meet, and survive what befalls clients and server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Cause, RoundEnded, RunEnded
from tests.shared_fs.agents_on_clients import AgentsOnClients
from tests.shared_fs.conftest import Clients
from tests.shared_fs.file_system import CLIENTS, FileSystem

NODES = ["1-client1", "2-client2", "3-client3"]
STALL_S = 8.0  # twice the lease


@pytest.fixture
def agents(system: FileSystem) -> Iterator[AgentsOnClients]:
    """Return agents that are ended after the test, before its faults are mended."""
    name = uuid.uuid4().hex[:12]
    made = AgentsOnClients(system, system.mount / f"agents-{name}", system.results / f"agents-{name}")
    yield made
    made.end()


def _start_round(agents: AgentsOnClients, nnodes: str) -> None:
    for client in CLIENTS:
        agents.start(client, "--nnodes", nnodes, "--last-call-timeout", "20")
    agents.wait_workers(1, 3)


def test_a_stalled_server_costs_time_only(
    system: FileSystem, agents: AgentsOnClients, clients: Clients
) -> None:
    """Agents on three clients meet; a server that stalls for two leases costs nobody's place; they finish."""
    _start_round(agents, "3")
    system.command("server-freeze")
    SystemClock().sleep(STALL_S)
    system.command("server-thaw")
    agents.finish()
    assert [0, 0, 0] == [agents.code(client) for client in CLIENTS], agents.story()
    assert [(1, NODES)] == agents.rounds(clients[0])
    assert [] == agents.entries(clients[0], RoundEnded)
    assert 1 == len(agents.entries(clients[0], RunEnded))


def test_a_lost_client_is_done_without(system: FileSystem, agents: AgentsOnClients, clients: Clients) -> None:
    """When a client loses power, the agents on the other two form a new round without it, and finish."""
    _start_round(agents, "2:3")
    system.command("kill", "3")
    agents.wait_workers(2, 2)
    agents.finish()
    assert [0, 0] == [agents.code(client) for client in (1, 2)], agents.story()
    assert [(1, NODES), (2, NODES[:2])] == agents.rounds(clients[0])
    assert [Cause.NODE_LOSS] == [entry.cause for entry in agents.entries(clients[0], RoundEnded)]


def test_a_frozen_client_changes_nothing_late(
    system: FileSystem, agents: AgentsOnClients, clients: Clients
) -> None:
    """A client that was frozen beyond its lease is out; thawed, it comes back in a round of its own."""
    _start_round(agents, "2:3")
    system.command("freeze", "3")
    agents.wait_workers(2, 2)
    system.command("thaw", "3")
    agents.wait_workers(3, 3)
    agents.finish()
    assert [0, 0, 0] == [agents.code(client) for client in CLIENTS], agents.story()
    for reader in clients:
        assert [(1, NODES), (2, NODES[:2]), (3, NODES)] == agents.rounds(reader)
    ended = [(entry.number, entry.cause) for entry in agents.entries(clients[0], RoundEnded)]
    assert [(1, Cause.NODE_LOSS), (2, Cause.MEMBERSHIP)] == ended
