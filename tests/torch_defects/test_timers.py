"""A file timer expires: its worker is killed and the workers start again; the launcher lives.

Elsewhere the launcher itself is killed, whatever restarts are left.
"""

from __future__ import annotations

import pytest

from tests.node.agents import gone
from tests.torch_defects.launches import MakeLaunches

OVERSTAYS = """
import signal, time
from hpc_elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
rounds = {rounds!r}
if os.environ["HPC_ELASTIC_ROUND"] in rounds:
    with timer.expires(after=0.1, scope="all_reduce"):
        time.sleep(600)
with timer.expires(after=600):
    pass
"""
ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


@pytest.mark.parametrize(("rounds", "code"), [("1", 0), ("12", 128 + 9)], ids=["once", "always"])
def test_an_expired_timer_is_a_failure_like_any_other(make: MakeLaunches, rounds: str, code: int) -> None:
    """With a restart left the run goes on to its end; without one it ends for the worker's signal."""
    launches = make(OVERSTAYS.replace("{rounds!r}", repr(rounds)))
    launches.start(0, "--max-restarts", "1", env=ON)
    output = launches.output(0)
    assert code == launches.code(0)
    assert 2 == len(launches.rounds())
    assert ["1"] == [worker["TORCHELASTIC_RESTART_COUNT"] for worker in launches.workers(2)]
    assert gone(launches.workers(1) + launches.workers(2))
    assert "all_reduce" in output
