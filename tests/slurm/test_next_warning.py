"""The warning before the limit of a run's next job, with a stand-in for Slurm's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.cli.main import main
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import AfterDrain, Cause, Drained, DrainRequested, Epoch, EpochStarted
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.other_jobs import Successors
from hpc_elastic.slurm.run_jobs.job_start import Start
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.slurm.submit.resubmit import lead_text, with_measured_lead
from tests.slurm.conftest import StandIn
from tests.slurm.test_signs_of_life import ROUND, write
from tests.slurm.test_submit import PatientClock, request, submitter

SLOW_S = 200.0  # a save, after which 260 s are wanted


def save(paths: RunPaths, took_s: float = SLOW_S, step: int = 7) -> None:
    """Mark a checkpoint that took so long [s]."""
    Path(paths.checkpoints).mkdir(parents=True, exist_ok=True)
    write_mark(paths, MarkName(step, 1, 0, 1), None, 1, took_s)


def leads(wanted: SubmitRequest) -> tuple[str, ...]:
    """Return what of the call of sbatch is about the warning."""
    words = with_measured_lead(wanted).sbatch_arguments
    return tuple(word for word in words if word.startswith("--signal") or word.isdigit())


@pytest.mark.parametrize(
    ("fields", "took_s", "expected"),
    [
        ({"time": "4h"}, SLOW_S, ("--signal=USR2@290", "0", "0", "260")),
        ({"time": "4h", "warn_signal": "USR1"}, 300.3, ("--signal=USR1@416", "0", "0", "386")),
        ({"time": "4h"}, 10.0, ("0",)),  # less than the default
        ({"time": "1h"}, 3600.0, ("--signal=USR2@930", "0", "0", "900")),  # a quarter of the time
        ({"time": "30-00"}, 90000.0, ("--signal=USR2@65535", "0", "0", "65505")),  # all that Slurm can do
        ({"time": "5m"}, SLOW_S, ("0",)),  # a short job is not all warning
        ({"time": "4h", "checkpoint_lead": 60}, SLOW_S, ("0",)),  # its user has said so
        ({"time": None}, SLOW_S, ("0",)),  # nobody knows the limit
        ({"time": "4h", "sbatch": {"time-min": "10"}}, SLOW_S, ("0",)),
    ],
)
def test_the_lead_is_what_saves_of_this_run_need(
    workdir: Path, fields: dict[str, object], took_s: float, expected: tuple[str, ...]
) -> None:
    """Never less than the default, never more than a quarter of the time limit."""
    wanted = request(**fields)
    save(wanted.paths, took_s)
    assert expected == leads(wanted)


def test_drains_count_as_saves_do(workdir: Path, run_paths: RunPaths) -> None:
    """From the request to the last worker's end."""
    drain = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "")
    write(run_paths, EpochStarted(Epoch(0, 0, 0, 0), "7", ("n1",)), ROUND, drain)
    write(run_paths, Drained(Epoch(0, 0, 0, 0), Cause.PREEMPTION, 4, "", SLOW_S))
    assert ("--signal=USR2@280", "0", "0", "250") == leads(request(time="4h", run_dir=run_paths.root))


def test_a_resumed_run_is_warned_earlier_and_its_user_told(
    workdir: Path, slurm_dir: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what differs from the default is told; the jobs of its chain are warned as early."""
    paths = submitter().submit(request(time="4h", chain=2)).request.paths
    slurm_dir.set_state("1000", "FAILED")
    slurm_dir.set_state("1001", "FAILED")
    save(paths)
    assert 0 == main(["submit", "--resume", paths.root])
    said = capsys.readouterr().out
    assert "workers get 260 s to save before the time limit, by the needs of this run so far (120 s" in said
    first, second = (call["argv"] for call in slurm_dir.submissions()[2:])
    assert [["1", "0", "260"], ["1", "1", "260"]] == [first[-3:], second[-3:]]
    assert "--signal=USR2@290" in first
    assert "--signal=USR2@290" in second
    assert "" == lead_text(request())


def test_a_job_that_finish_submits_is_warned_earlier_and_says_so(workdir: Path, slurm_dir: StandIn) -> None:
    """In the log of the job that ends; what an interrupted finish has queued stays."""
    paths = submitter().submit(request(time="4h")).request.paths
    save(paths)
    start = Start(paths, Epoch(0, 0, 0, 0), "1000", 1, local=False, srun_exit_code=75)
    said: list[str] = []
    assert "1001" == Successors(start, Slurm(), PatientClock(), said.append).resubmit()
    assert ["0", "1", "260"] == slurm_dir.submissions()[-1]["argv"][-3:]
    assert "job 1001: workers get 260 s to save before the time limit" in said[0]


def test_a_job_that_is_warned_as_ever_is_not_told_of(workdir: Path, slurm_dir: StandIn) -> None:
    """There is nothing new."""
    paths = submitter().submit(request(time="4h")).request.paths
    start = Start(paths, Epoch(0, 0, 0, 0), "1000", 1, local=False, srun_exit_code=75)
    said: list[str] = []
    assert "1001" == Successors(start, Slurm(), PatientClock(), said.append).resubmit()
    assert [] == said
