"""A rendezvous sends its node away without failure: the launch ends, and nothing has failed.

Elsewhere the launcher ends with an AttributeError, as its agent returns nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.agent.server.api import WorkerState
from hpc_elastic.agent.server.local_elastic_agent import LocalElasticAgent
from hpc_elastic.launcher.api import LaunchConfig, elastic_launch
from hpc_elastic.multiprocessing import DefaultLogsSpecs
from hpc_elastic.node.spec import WorkerSpec
from hpc_elastic.rendezvous import RendezvousGracefulExitError
from hpc_elastic.rendezvous.registry import rendezvous_handler_registry
from tests.agent.elastic_fakes import FakeHandler


class SendsAway(FakeHandler):
    """A rendezvous that has no use for this node."""

    def __init__(self) -> None:
        super().__init__(rounds=[RendezvousGracefulExitError("the run has shrunk")])

    def get_backend(self) -> str:
        """Return the name."""
        return "sends-away"


def test_an_agent_that_is_sent_away_has_stopped(tmp_path: Path) -> None:
    """It returns a result like any other, which has no failures."""
    spec = WorkerSpec(role="r", local_world_size=1, entrypoint=print, rdzv_handler=SendsAway())
    result = LocalElasticAgent(spec, DefaultLogsSpecs(str(tmp_path))).run()
    assert WorkerState.STOPPED is result.state
    assert not result.is_failed()


def test_a_launch_that_is_sent_away_returns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the launcher's own names: no values, and no exception."""
    creators = rendezvous_handler_registry._registry
    monkeypatch.setitem(creators, "sends-away", lambda _params: SendsAway())
    config = LaunchConfig(
        *(1, 1, 1),
        run_id="run",
        rdzv_backend="sends-away",
        rdzv_endpoint="nowhere",
        logs_specs=DefaultLogsSpecs(str(tmp_path)),
    )
    assert {} == elastic_launch(config, print)("unprinted")
