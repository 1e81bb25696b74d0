"""Signals to a launcher: it ends in time with a code that tells why, and no worker stays behind.

Elsewhere a third signal ends the launcher at once and leaves its workers, a second one begins the
time of grace anew, and what comes before the workers are there is not heard.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.node.agents import gone, wait_for
from tests.torch_defects.launches import DEAF, MakeLaunches


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_three_signals_leave_no_worker(make: MakeLaunches, number: signal.Signals) -> None:
    """Each is sent while the launcher waits for deaf workers; it ends them and says why it ends."""
    launches = make(DEAF)
    launcher = launches.start(0, "--nproc-per-node", "2", "--shutdown-timeout", "0.5")
    launches.files(".deaf", 2)
    log = launches.paths.agent_log

    def heard(count: int) -> bool:
        folder = os.path.dirname(log("x"))
        (name,) = (name for name in os.listdir(folder) if name.endswith(".log"))
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read().count(f"{number.name} received") == count or launcher.poll() is not None

    for count in (1, 2, 3):
        launcher.send_signal(number)
        wait_for(lambda count=count: heard(count), f"signal {count} to be heard")  # type: ignore[misc]
    launches.output(0)
    # the last one may come when the launcher has no more to do than to end, and is ended by it
    assert launches.code(0) in {128 + number, -number}
    assert gone(launches.workers(1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_before_all_nodes_are_there(make: MakeLaunches, number: signal.Signals) -> None:
    """Who waits for another node ends at once, without a traceback."""
    launches = make("")
    launcher = launches.start(0, "--nnodes", "2")
    members = launches.paths.members
    wait_for(lambda: os.path.isdir(members) and bool(os.listdir(members)), "the launcher to wait")
    launcher.send_signal(number)
    output = launches.output(0)
    assert 128 + number == launches.code(0)
    assert "Traceback" not in output
