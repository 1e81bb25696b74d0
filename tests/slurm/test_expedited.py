"""Jobs that Slurm starts again at once after a requeue: who asks for it, and how such a job ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.errors import SlurmCommandError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Epoch
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.expedited import DELAY_S, delay, let_end
from hpc_elastic.slurm.end.requeue import PATIENCE_S, HandBack, RequeueOutcome
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs.job_start import Patience, Start
from hpc_elastic.slurm.submit.request import EXPEDITE, SubmitRequest, plan, read_template
from hpc_elastic.slurm.submit.resubmit import expedited
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_batch_sh import bash

HELP = Path(__file__).parent / "recorded"
NO_MORE = "scontrol update JobId=7 Requeue=0"


class Site(Slurm):
    """A Slurm that lets jobs ask, or not."""

    def __init__(self, *, allows: bool = True) -> None:
        super().__init__({})
        self._allows = allows

    def may_expedite(self) -> bool:
        """Return what the site allows."""
        return self._allows


def request(tmp_path: Path, **fields: object) -> SubmitRequest:
    """Return the request of a run."""
    spec = JobSpec(**{"command": ["train.py"], "run_dir": str(tmp_path / "run"), **fields})
    return plan(spec, read_template(spec.mode), now_s=0.0)


@pytest.mark.parametrize(
    ("parameters", "allowed"),
    [
        ("enable_expedited_requeue", True),
        ("idle_on_node_suspend,enable_expedited_requeue", True),
        ("idle_on_node_suspend", False),
        ("(null)", False),
    ],
)
def test_the_site_and_its_sbatch_are_asked(parameters: str, *, allowed: bool) -> None:
    """An sbatch that does not know it would refuse the job, whatever slurmctld allows."""
    assert allowed is parse.allows_expedited({"SlurmctldParameters": parameters})
    known = [parse.knows_expedited((HELP / of / "sbatch_help.txt").read_text()) for of in ("22.05", "26.05")]
    assert [False, True] == known


def test_only_slurm_itself_says_that_a_job_is_expedited() -> None:
    """The line is that of 26.05; a comment that reads like it is one."""
    told = "   SubmitLine=sbatch a b\n   ExpeditedRequeue=Yes WorkDir=/\n"
    assert parse.is_expedited(told)
    assert not parse.is_expedited("JobId=7\n   Comment=so ExpeditedRequeue=Yes\n   WorkDir=/\n")


def test_a_job_is_queued_so_where_the_site_allows_it(tmp_path: Path) -> None:
    """The script is told by its last argument, behind those that tell its place and its time to save."""
    wanted = request(tmp_path)
    asked = expedited(wanted, Site())
    script = wanted.paths.script
    assert (EXPEDITE, script, "0", "0", "0", "expedited") == asked.sbatch_arguments[-6:]
    later = asked._replace(submission=2, lead_s=260.0).sbatch_call((), 3)
    assert (EXPEDITE, script, "2", "3", "260", "expedited") == later
    assert wanted == expedited(wanted, Site(allows=False))


@pytest.mark.parametrize(
    "fields",
    [{"expedite": False}, {"chain": 3}, {"max_requeues": 0}, {"sbatch": {"clusters": "other"}}],
    ids=str,
)
def test_some_jobs_are_not(tmp_path: Path, fields: dict[str, object]) -> None:
    """One that its user wants otherwise, one that is never requeued, and one of another cluster."""
    assert not expedited(request(tmp_path, **fields), Site()).expedited


def test_a_script_of_an_older_version_is_not(tmp_path: Path) -> None:
    """Its job would be held at its end."""
    assert not expedited(request(tmp_path)._replace(functions="begin_job() { :; }"), Site()).expedited


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """Return a running job of two nodes."""
    return FakeJob(tmp_path / "slurm")


def start(tmp_path: Path, *, is_ours: bool = True) -> Start:
    """Return the first start of the job."""
    known = Start(RunPaths(tmp_path / "run"), Epoch(0, 0, 0, 0), "7", 2, local=False, srun_exit_code=76)
    return known._replace(is_submitted=is_ours, expedited=is_ours)


def ended(job: FakeJob, known: Start, code: int = ExitCode.FAILED, clock: FakeClock | None = None) -> int:
    """Return the exit code of the script."""
    patiently = Patience(clock or FakeClock(), lambda _line: None)
    return let_end(known, Slurm(job.environ), patiently, code, patience_s=PATIENCE_S)


def test_a_job_that_ends_is_to_be_requeued_no_more(job: FakeJob, tmp_path: Path) -> None:
    """Else Slurm would hold it for its exit code; a job that is done, or has more to do, has none."""
    assert [0, 80] == [ended(job, start(tmp_path), code) for code in (ExitCode.OK, ExitCode.RELAUNCH)]
    assert [] == job.calls
    assert ExitCode.FAILED == ended(job, start(tmp_path))
    assert [NO_MORE] == job.calls


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"JobState": "PENDING", "Restarts": "1"}, 76),
        ({"JobState": "EXPEDITING"}, 76),
        ({"JobState": "RUNNING", "Restarts": "1"}, 76),
        ({"JobState": "CANCELLED"}, 76),
        ({"JobState": "COMPLETING", "Reason": "TimeLimit"}, 0),
        ({"JobState": "PREEMPTED"}, 0),
    ],
    ids=str,
)
def test_a_job_that_slurm_has_or_ends_is_left_alone(
    job: FakeJob, tmp_path: Path, fields: dict[str, str], code: int
) -> None:
    """In one that it ends nothing can be changed: with the exit code 0 it keeps the state that it has."""
    job.set(**fields)
    assert code == ended(job, start(tmp_path))
    assert [] == job.calls


def test_slurm_that_is_away_is_waited_for(job: FakeJob, tmp_path: Path) -> None:
    """Its nodes would be free for no other job; a refusal is an answer."""
    clock = FakeClock()
    job.fail(update=3)
    assert ExitCode.FAILED == ended(job, start(tmp_path), clock=clock)
    assert [NO_MORE] * 4 == job.calls
    assert clock.monotonic() > 5
    job.refuse("update", "Access/permission denied for job 7")
    with pytest.raises(SlurmCommandError, match="denied"):
        ended(job, start(tmp_path))


def test_a_script_of_the_users_own_asks_slurm(job: FakeJob, tmp_path: Path) -> None:
    """It may have the option in its header; most have not."""
    assert ExitCode.FAILED == ended(job, start(tmp_path, is_ours=False))
    assert [] == job.calls
    assert ["scontrol show job 7"] == job.questions


@pytest.mark.parametrize(
    ("cause", "is_unfit", "waits"),
    [
        (Cause.NODE_LOSS, False, False),
        (Cause.PREEMPTION, False, False),
        (Cause.NODE_LOSS, True, True),
        (Cause.LAUNCH_FAILURE, False, True),
        (Cause.JOIN_TIMEOUT, False, True),
    ],
)
def test_a_start_that_failed_by_itself_is_not_repeated_at_once(
    job: FakeJob, tmp_path: Path, cause: Cause, *, is_unfit: bool, waits: bool
) -> None:
    """Its budget would be spent in the seconds of an outage; for a lost node no run is to blame."""
    delay(start(tmp_path), Slurm(job.environ), cause, is_unfit=is_unfit)
    assert waits == (job.calls == [f"scontrol update JobId=7 StartTime=now+{DELAY_S}"])


def test_a_job_that_cannot_be_held_yet_is_tried_again(job: FakeJob) -> None:
    """As long as it is EXPEDITING its owner can change nothing; the refusals count as no answer."""
    job.set(JobState="EXPEDITING", Restarts="1")
    job.refuse("hold", "Requested operation not supported on this system for job 7")

    class Later(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() > began + 20:
                job.set(JobState="PENDING", Restarts="1")
                job.refuse("nothing", "")

    clock = Later()
    began = clock.monotonic()
    assert RequeueOutcome.DONE is HandBack(Slurm(job.environ), "7", 0, clock).hold("why").outcome
    assert clock.monotonic() > began + 20


@pytest.mark.parametrize("array", [{}, {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}], ids=str)
def test_a_script_that_ends_without_finish_sees_to_it(tmp_path: Path, array: dict[str, str]) -> None:
    """Where Python is away it calls scontrol itself; of an array the task alone is changed."""
    scontrol = 'scontrol() { echo scontrol "$@"; }; sleep() { :; }; _he_elastic=(nothing_there)'
    run = f"{scontrol}; export HPC_ELASTIC_EXPEDITED=$1; run_finish"
    both = [
        bash(f"set -- {how}; {run}", PATH="/bin:/usr/bin", SLURM_JOB_ID="7", **array) for how in ("yes", "")
    ]
    assert [127, 127] == [done.returncode for done in both]
    job = "5_2" if array else "7"
    assert [f"scontrol update JobId={job} Requeue=0\n", ""] == [done.stdout for done in both]
