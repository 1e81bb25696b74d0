"""Whether agents live, told from the names in a run directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.end_run import EndRun
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.run_files import read_run
from hpc_elastic.slurm.run_jobs.signs_of_life import (
    LOOK_S,
    SCRIPT_S,
    SILENT_S,
    Signs,
    is_in_doubt,
    signs_of,
    silent_for,
)
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1),), "n1", 1, None)


def write(paths: RunPaths, *entries: Entry) -> None:
    """Write records as the agents do."""
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


def tell(paths: RunPaths, counter: int, phase: Phase = Phase.RUNNING, epoch: Epoch = EPOCH) -> str:
    """Write the name of the agent on n1; return its path."""
    path = os.path.join(paths.members, MemberName("n1.1", epoch, phase, 1, counter).text())
    Path(path).touch()
    return path


class LaterClock(FakeClock):
    """A clock that is ahead of the files by a time [s], and does something while one waits."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__(wall_s=SystemClock().wall() + ahead_s)
        self.slept_s = 0.0
        self.meanwhile: list[tuple[str, str]] = []  # names that change

    def sleep(self, seconds: float) -> None:
        """Let time pass, and the first of the changes happen."""
        super().sleep(seconds)
        self.slept_s += seconds
        for old, new in self.meanwhile[:1]:
            os.rename(old, new)
            self.meanwhile.clear()


def test_agents_that_beat_are_alive_and_cost_no_wait(run_paths: RunPaths) -> None:
    """Fresh names raise no doubt."""
    write(run_paths, STARTED, ROUND)
    tell(run_paths, 5)
    clock = LaterClock(0.0)
    assert None is silent_for(read_run(run_paths), clock)
    assert 0.0 == clock.slept_s


def test_names_that_do_not_change_are_silence(run_paths: RunPaths) -> None:
    """Old names are looked at again, and then the age is told."""
    write(run_paths, STARTED, ROUND)
    tell(run_paths, 5)
    clock, said = LaterClock(SILENT_S + 60), list[str]()
    found = silent_for(read_run(run_paths), clock, said.append)
    assert found is not None
    assert SILENT_S + 50 < found < SILENT_S + 3600
    assert LOOK_S == pytest.approx(clock.slept_s, abs=0.5)
    assert "no sign of life" in said[0]


def test_a_clock_that_is_wrong_makes_nobody_dead(run_paths: RunPaths) -> None:
    """A name that changes while one looks is life, however old its file looks."""
    write(run_paths, STARTED, ROUND)
    old = tell(run_paths, 5)
    clock = LaterClock(7 * 86400.0)
    clock.meanwhile = [(old, old.replace("+5+", "+6+"))]
    assert None is silent_for(read_run(run_paths), clock)
    assert [] == clock.meanwhile


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        (RunEnded(Decision.DONE, 0, "", None), Phase.SUCCEEDED),
        (Drained(EPOCH, Cause.PREEMPTION, 3, ""), Phase.LEFT),
    ],
    ids=["ended", "drained"],
)
def test_who_has_left_is_not_missed(run_paths: RunPaths, more: Entry, phase: Phase) -> None:
    """After the end, or a drain with no batch script that counted, nobody has to beat."""
    write(run_paths, STARTED, ROUND, more)
    tell(run_paths, 5, phase)
    assert None is silent_for(read_run(run_paths), LaterClock(1e6))


def test_agents_without_a_name_are_heard_of_by_their_record(run_paths: RunPaths) -> None:
    """An agent that died between its first record and its first name is missed, too."""
    write(run_paths, STARTED)
    assert None is silent_for(read_run(run_paths), LaterClock(SILENT_S / 2))
    assert silent_for(read_run(run_paths), LaterClock(SILENT_S + 60)) is not None


def test_names_of_an_older_start_count_for_nothing(run_paths: RunPaths) -> None:
    """They are left behind by agents that were killed; the newest start speaks for the run."""
    write(run_paths, STARTED, ROUND, EpochStarted(Epoch(0, 0, 1, 0), "7", ("n1",)))
    tell(run_paths, 5)
    tell(run_paths, 0, Phase.LEFT, Epoch(0, 0, 1, 0))
    assert signs_of(read_run(run_paths), SystemClock().wall() + 1e6).agents_s is None


def test_a_lost_node_is_no_sign_of_an_older_time(run_paths: RunPaths) -> None:
    """Its name stays; the others have left it, and told when."""
    lost = RoundEnded(1, Cause.NODE_LOSS, ("n1",), None)
    two = RoundFormed(2, EPOCH, (Member("n2.1", "n2", 1),), "n2", 1, None, ("n1",))
    write(run_paths, STARTED, ROUND, lost, two, Drained(EPOCH, Cause.PREEMPTION, 3, ""))
    tell(run_paths, 5)
    assert None is silent_for(read_run(run_paths), LaterClock(SILENT_S + 60))


def test_a_script_that_counted_and_stopped_is_missed() -> None:
    """With no agents left the batch script has to requeue the job, and counts until then."""
    assert is_in_doubt(Signs(None, SCRIPT_S))
    assert not is_in_doubt(Signs(None, SCRIPT_S - 1))
    assert not is_in_doubt(Signs(None, None))
    assert not is_in_doubt(Signs(1.0, 1e6))


def test_stop_does_not_wait_for_the_dead(run_paths: RunPaths, tmp_path: Path) -> None:
    """A drain that nobody carries out is not waited for: the run ends, and its job is taken away."""
    submissions.record(run_paths, Submission(0, "token", "7", ""))
    write(run_paths, STARTED, ROUND, DrainRequested(Cause.TIME_LIMIT, "n1", AfterDrain.LEAVE, ""))
    tell(run_paths, 5)
    job, said = FakeJob(tmp_path / "slurm"), list[str]()
    clock = LaterClock(SILENT_S + 60)
    EndRun(run_paths, Slurm(job.environ), clock, said.append).stop()
    ending = read_state(run_paths).ending
    assert ending is not None
    assert Decision.STOPPED is ending.decision
    assert "no agent has given a sign of life" in ending.reason
    assert ["scancel 7"] == job.calls
    assert clock.slept_s < 2 * LOOK_S
