"""Requeued tasks of an array start at once, by the first node of the round that goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.why_left import Notice
from hpc_elastic.slurm.client.answers import SlurmTask
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs import job_start
from hpc_elastic.slurm.run_jobs.submissions import JobRecord, encode_record
from hpc_elastic.slurm.watch.array_delay import Looks, TaskWatch, is_delayed, start_returned
from hpc_elastic.slurm.watch.job_watch import WatchOptions
from tests.slurm.array_stand_in import ArraySlurm

LIMIT_S = 120.0
WAITS = {
    "JobState": "PENDING",
    "Reason": "BeginTime",
    "Restarts": "1",
    "SubmitTime": "2026-11-21T20:00:00",
    "EligibleTime": "2026-11-21T20:02:01",
}
BACK = SlurmTask("7", 1, JobState.PENDING, "", "BeginTime")
ENV = SlurmEnv("7_0", "8", 0, 0, True, "n1", 0, ("n1",), None, False, None, TaskStart("7_0", 0, 0))


class Slurm(ArraySlurm):
    """One that changes tasks, too."""

    def __init__(self, *tasks: SlurmTask, **fields: str) -> None:
        super().__init__(tasks, **fields)
        self.updated = threading.Event()

    def update(self, job_ref: str, *fields: str) -> None:
        """Write it down."""
        self._answer(f"update {job_ref} {' '.join(fields)}")
        self.updated.set()


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return a run directory without records."""
    paths = RunPaths(tmp_path)
    Path(paths.submissions).mkdir()
    return paths


@pytest.mark.parametrize(
    "fields",
    [
        {"Restarts": "0"},
        {"Reason": "JobHeldUser"},
        {"Reason": "Resources"},
        {"JobState": "RUNNING"},
        {"EligibleTime": "2026-11-22T08:00:00"},
        {"EligibleTime": "Unknown"},
    ],
    ids=["never ran", "held", "no node is free", "runs", "somebody's wish", "no time"],
)
def test_who_waits_for_something_else_goes_on_waiting(fields: dict[str, str]) -> None:
    """Only the delay after a requeue is cut."""
    assert is_delayed(WAITS)
    assert not is_delayed({**WAITS, **fields})


def test_a_delay_of_slurms_own_has_a_limit() -> None:
    """A later start is the wish of a user."""
    assert is_delayed({**WAITS, "EligibleTime": "2026-11-21T20:15:00"})
    assert not is_delayed({**WAITS, "EligibleTime": "2026-11-21T20:15:01"})


def test_only_tasks_that_come_back_are_started(paths: RunPaths) -> None:
    """Each by its own name, after one question for all."""
    others = (SlurmTask("7", 0, JobState.RUNNING, "n1"), SlurmTask("7", 2, JobState.PENDING, "", "Resources"))
    more = (
        BACK._replace(number=3, state=JobState.COMPLETING),
        BACK._replace(number=4, state=JobState.RUNNING),
    )
    slurm = Slurm(BACK, *others, *more, **WAITS)
    assert ["7_1"] == start_returned(paths, "7", slurm)
    assert ["update 7_1 StartTime=now+3"] == slurm.done


def test_a_task_that_slurm_has_forgotten_meanwhile_is_left_alone(paths: RunPaths) -> None:
    """The next one is started all the same."""

    class Forgetful(Slurm):
        def show_job(self, job_ref: str) -> dict[str, str] | None:
            """Know the second task alone."""
            return None if job_ref == "7_1" else super().show_job(job_ref)

    slurm = Forgetful(BACK, BACK._replace(number=2), **WAITS)
    assert ["7_2"] == start_returned(paths, "7", slurm)


def test_a_task_that_was_never_requeued_keeps_its_begin(paths: RunPaths) -> None:
    """Its user has chosen when it begins; squeue alone tells the two not apart."""
    slurm = Slurm(BACK, **{**WAITS, "Restarts": "0"})
    assert ([], []) == (start_returned(paths, "7", slurm), slurm.done)


def test_each_task_watches_its_own_limit(paths: RunPaths) -> None:
    """It has one of its own, and no other node looks at it."""
    asked = threading.Event()

    class Limited(Slurm):
        def time_left_s(self, job_ref: str) -> float | None:  # noqa: ARG002 - there is one task
            asked.set()
            return None

    watch = TaskWatch(paths, ENV, WatchOptions(), Limited(), EventLoop(SystemClock()), pauses_s=())
    watch.begin(is_first=False)
    assert asked.wait(LIMIT_S)
    watch.close()


def test_the_first_node_of_a_round_does_it(paths: RunPaths) -> None:
    """The others leave it to that one; a Slurm that is away is no error."""
    slurm = Slurm(BACK, **WAITS)
    watch = TaskWatch(paths, ENV, WatchOptions(), slurm, EventLoop(SystemClock()), pauses_s=(0.0,))
    watch.begin(is_first=True)
    assert slurm.updated.wait(LIMIT_S)
    watch.close()
    assert watch._thread is not None
    watch._thread.join(LIMIT_S)
    assert not watch._thread.is_alive()


def test_looks_end_and_begin_anew() -> None:
    """Nobody asks for ever: with every round the same few times."""
    looked = threading.Semaphore(0)
    looks = Looks(looked.release, (0.0, 0.0))
    for _ in range(2):
        looks.begin()
        for _ in range(2):
            assert looked.acquire(timeout=LIMIT_S)
    looks.close()
    looks.begin()
    assert not looked.acquire(blocking=False)


def test_a_pause_ends_with_the_agent() -> None:
    """Without one more look."""
    looked: list[int] = []
    looks, before = Looks(lambda: looked.append(1), (LIMIT_S,)), {*threading.enumerate()}
    looks.begin()
    (thread,) = {*threading.enumerate()} - before
    looks.close()
    thread.join(LIMIT_S / 2)
    assert (False, []) == (thread.is_alive(), looked)


def test_looks_that_are_under_way_begin_anew_in_the_same_thread() -> None:
    """Two at once would ask Slurm twice."""
    began, go_on, looking = threading.Semaphore(0), threading.Semaphore(0), threading.Semaphore(1)

    def look() -> None:
        assert looking.acquire(blocking=False), "another thread looks"
        began.release()
        assert go_on.acquire(timeout=LIMIT_S)
        looking.release()

    looks = Looks(look, (0.0, 0.0))
    looks.begin()
    assert began.acquire(timeout=LIMIT_S)
    looks.begin()
    assert 1 == sum(thread.name == "array-return" for thread in threading.enumerate())
    for _ in range(2):  # those of the second begin
        go_on.release()
        assert began.acquire(timeout=LIMIT_S)
    go_on.release()
    looks.close()


def test_tasks_are_asked_for_by_the_newest_submission(paths: RunPaths) -> None:
    """Those of earlier ones are over."""

    class Tokens(Slurm):
        def array_tasks(self, token: str, array: str) -> list[SlurmTask]:
            asked.append(token)
            return super().array_tasks(token, array)

    asked: list[str] = []
    assert [] == start_returned(paths, "7", Tokens())
    for number in (0, 1):
        record = encode_record(JobRecord(f"t{number}", "7"))
        (Path(paths.submissions) / f"{number:06}.json").write_bytes(record)
    assert [] == start_returned(paths, "7", Tokens())
    assert ["", "t1"] == asked


def test_a_task_reads_why_slurm_has_put_it_back(paths: RunPaths) -> None:
    """In its own log, where Slurm writes it; what stands there of an earlier start is not asked for."""
    log = Path(paths.batch_log.replace("%j", "7_0"))
    log.write_text("*** JOB 8 ON n1 CANCELLED AT 2026-11-21T20:00:00 DUE TO PREEMPTION ***\n")
    loop = EventLoop(SystemClock())
    slurm = Slurm(BACK, **WAITS)
    watch = TaskWatch(paths, ENV, WatchOptions(), slurm, loop, pauses_s=())
    watch.ask_why(loop_time := SystemClock().monotonic(), is_warning=False)
    assert "the job is requeued: preempted" in heard(loop).detail
    wait_answered(watch)
    with log.open("a") as file:
        file.write("*** JOB 8 ON n1 CANCELLED AT 2026-11-21T21:00:00 DUE TO JOB REQUEUE ***\n")
    watch.ask_why(loop_time, is_warning=False)
    told = heard(loop)
    assert (Cause.REQUEUE, "the job is requeued by hand (scontrol requeue)") == (told.cause, told.detail)
    watch.close()
    loop.close()


def test_the_reason_may_be_written_a_moment_after_the_requeue(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that has gone back tells no reason any more; its log does, a moment later."""
    log = Path(paths.batch_log.replace("%j", "7_0"))
    log.touch()
    slurm, loop, looks = Slurm(BACK, **WAITS), EventLoop(SystemClock()), list[int]()
    end_of = job_start.log_end

    def late(*place: str, since: int) -> str:
        looks.append(since)
        if len(looks) == 2:
            log.write_text(
                "*** JOB 8 ON n1 CANCELLED AT 2026-11-21T20:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
            )
        return end_of(paths, place[1], since=since)

    monkeypatch.setattr(job_start, "log_end", late)
    watch = TaskWatch(paths, ENV, WatchOptions(), slurm, loop, pauses_s=())
    watch.ask_why(SystemClock().monotonic(), is_warning=False)
    assert watch.is_asking
    assert (Cause.NODE_LOSS, 2) == (heard(loop).cause, len(looks))
    wait_answered(watch)
    watch.close()
    loop.close()


def wait_answered(watch: TaskWatch) -> None:
    """Wait until no question is under way."""
    clock = SystemClock()
    give_up_at = clock.monotonic() + LIMIT_S
    while watch.is_asking:
        assert clock.monotonic() < give_up_at
        clock.sleep(0.01)


def heard(loop: EventLoop) -> Notice:
    """Return the next notice."""
    clock = SystemClock()
    give_up_at = clock.monotonic() + LIMIT_S
    while not loop.notices:
        assert clock.monotonic() < give_up_at
        clock.sleep(0.01)
    return loop.notices.popleft()
