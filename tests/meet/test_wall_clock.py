"""Wall clocks that jump: they are for people to read, nothing is decided by them."""

from __future__ import annotations

import pytest

from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import RunLog, read_records
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, member

HOUR_S = 3600.0
NAMES = ("n1", "n2")
SETTINGS = MeetingSettings(min_nodes=2, max_nodes=2, join_timeout=60.0, last_call_timeout=5.0)


class JumpingClock(FakeClock):
    """A clock whose wall time somebody sets."""

    jump_s = 0.0

    def wall(self) -> float:
        """Return the wall time that was set."""
        return super().wall() + self.jump_s


def _node(paths: RunPaths, clock: JumpingClock, name: str) -> SharedFsRendezvous:
    store = SharedDirStore(paths.root)
    facts = NodeFacts(member(name), f"host-{name}", f"{name}.cluster")
    membership = Membership(store, clock, facts, E0, SETTINGS)
    told = RunFacts("run-1", "17", NAMES)
    run = SharedRun(RunLog(store, clock, name), membership, told, SETTINGS, RunDeps(clock, lambda: None))
    return SharedFsRendezvous(run, Waiting(clock.advance, lambda: 20_000, lambda: False))


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S, -30 * 365 * 24 * HOUR_S])
def test_a_wall_clock_that_is_set_changes_nothing(run_paths: RunPaths, jump_s: float) -> None:
    """On one of two nodes, or on both: nobody is lost, no round ends, and reports stand in their order."""
    clock, other = JumpingClock(), JumpingClock()
    second = _node(run_paths, other, "n2").run
    first = _node(run_paths, clock, "n1")
    second.announce()
    second.membership.offer(1, 20_001)
    second.membership.ensure_phase(Phase.JOINING, 1)
    assert 2 == first.next_rendezvous().world_size
    formed = second.refresh().round
    assert formed is not None
    second.take_place(formed)
    runs = [first.run, second]
    for set_clock in (clock, other):
        set_clock.jump_s = jump_s
        for _ in range(40):
            clock.advance(SETTINGS.heartbeat_interval / 2)
            other.advance(SETTINGS.heartbeat_interval / 2)
            for run in runs:
                run.tick(look=True)
        assert [((), None, True)] * 2 == [
            (run.lost, run.blind_since, run.state.running == formed) for run in runs
        ]
    first.run.report_crash(1, {})
    records = read_records(run_paths)
    assert list(range(1, len(records) + 1)) == [record.number for record in records]
    assert records[-1].at - records[-2].at == pytest.approx(jump_s, abs=120)
    assert second.refresh().running is None
