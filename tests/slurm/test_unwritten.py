"""Ends of starts that nobody has recorded: found by the next start, and charged once to their cause."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_log import open_log, read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.answers import LostNodeState, PastStart, read_past_starts
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.bad_nodes import begin_with_nodes
from hpc_elastic.slurm.end.begin import charge
from hpc_elastic.slurm.end.choices import MAX_STARTS_IN_VAIN, Facts, RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.end.lifecycle import before_start
from hpc_elastic.slurm.end.unwritten import SlurmSays, mark_text, member_of, of_job, of_task, part_of
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.store.node_events import Fault
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import FastClock, job, paths, write
from tests.slurm.test_lifecycle import round_of, state_of

__all__ = ["job", "paths"]
FIRST = Epoch(0, 0, 0, 0)
NEXT = FIRST._replace(restart=1)
BEGAN = EpochStarted(FIRST, "7", ("n1", "n2"), "n1", "2:2")
ROUND = round_of(FIRST)
ASKED = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "")
STOP = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
BY_SIGNAL = ASKED._replace(asked=Asked("SIGTERM"))  # its reason was not told
WORD = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-28T10:00:00 DUE TO {} ***\n"
LOG = "training\n"


def causes(state: RunState, epoch: Epoch, told: SlurmSays) -> list[tuple[Cause, tuple[str, ...]]]:
    """Return the causes and the lost nodes of the ends that nobody has recorded."""
    return [(one.cause, one.nodes) for one in of_job(state, epoch, told)]


@pytest.mark.parametrize(
    ("entries", "told", "cause", "nodes"),
    [
        (
            (),
            SlurmSays(log=LOG, failed=frozenset({"n1"})),
            Cause.NODE_LOSS,
            ("n1",),
        ),  # the batch host went with all that it would have said
        ((), SlurmSays(log=LOG, failed=frozenset({"n1", "n2"})), Cause.NODE_LOSS, ()),  # not it alone
        ((), SlurmSays(log=LOG), Cause.UNKNOWN, ()),  # its batch script may have been killed
        ((), SlurmSays(log=LOG, failed=frozenset({"n2"})), Cause.UNKNOWN, ()),
        ((), SlurmSays([PastStart("NODE_FAIL", ("n1", "n2"))], LOG), Cause.NODE_LOSS, ("n1",)),
        (
            (),
            SlurmSays([PastStart("NODE_FAIL", ("n1", "n2"))], LOG, frozenset({"n1", "n2"})),
            Cause.NODE_LOSS,
            (),
        ),
        (
            (),
            SlurmSays([PastStart("NODE_FAIL", ("n1", "n2"))], WORD.format("NODE FAILURE")),
            Cause.NODE_LOSS,
            (),
        ),
        ((), SlurmSays([PastStart("PREEMPTED", ("n1", "n2"))], LOG), Cause.PREEMPTION, ()),
        ((), SlurmSays([PastStart("TIMEOUT", ("n1", "n2"))], LOG), Cause.TIME_LIMIT, ()),
        ((), SlurmSays([PastStart("REQUEUED", ("n1", "n2"))], LOG), Cause.REQUEUE, ()),
        ((), SlurmSays(log=WORD.format("PREEMPTION")), Cause.PREEMPTION, ()),
        ((), SlurmSays(log=WORD.format("JOB REQUEUE")), Cause.REQUEUE, ()),
        ((), SlurmSays(log=WORD.format("TIME LIMIT")), Cause.TIME_LIMIT, ()),
        ((ASKED,), SlurmSays(log=LOG), Cause.PREEMPTION, ()),  # finish was killed before it came to write
        ((ASKED, Drained(FIRST, Cause.TIME_LIMIT, 9, "")), SlurmSays(log=LOG), Cause.TIME_LIMIT, ()),
        ((), SlurmSays(), Cause.UNKNOWN, ()),  # the log is gone, and there is no accounting
        ((STOP,), SlurmSays([PastStart("NODE_FAIL", ("n1",))]), Cause.NODE_LOSS, ("n1",)),
        ((STOP,), SlurmSays(log=LOG), Cause.UNKNOWN, ()),  # a wish that was not carried out is no end
        ((BY_SIGNAL,), SlurmSays([PastStart("REQUEUED", ("n1", "n2"))]), Cause.REQUEUE, ()),
        # a script that was killed, and a job that an agent without a word of Slurm has given back
        ((BY_SIGNAL,), SlurmSays([PastStart("FAILED", ("n1", "n2"))]), Cause.UNKNOWN, ()),
        ((BY_SIGNAL,), SlurmSays([PastStart("RUNNING", ("n1", "n2"))]), Cause.PREEMPTION, ()),  # it is late
        (
            (BY_SIGNAL, DrainExplained(FIRST, Cause.PREEMPTION, "in a grace", answer=Answer.CONFIRMS)),
            SlurmSays([PastStart("REQUEUED", ("n1", "n2"))]),
            Cause.PREEMPTION,
            (),
        ),
    ],
)
def test_an_end_without_a_record_has_the_cause_that_is_told(
    entries: tuple[Entry, ...], told: SlurmSays, cause: Cause, nodes: tuple[str, ...]
) -> None:
    """Slurm's own word counts most, then that of the agents; where nothing tells, nothing is claimed."""
    assert [(cause, nodes)] == causes(state_of(BEGAN, ROUND, *entries), NEXT, told)


@pytest.mark.parametrize(
    "entries",
    [
        (Requeued(FIRST, Cause.PREEMPTION),),
        (RunEnded(Decision.HELD, 75, "a budget is spent", None),),  # it was put back to be held
        (RunEnded(Decision.DONE, 0, "", None),),
    ],
)
def test_an_end_with_a_record_is_not_charged_again(entries: tuple[Entry, ...]) -> None:
    """Whoever came first has counted it."""
    assert [] == causes(state_of(BEGAN, ROUND, *entries), NEXT, SlurmSays(log=LOG))
    assert [] == causes(state_of(BEGAN, ROUND), FIRST, SlurmSays(log=LOG))  # the start itself


def test_without_a_known_batch_host_the_first_node_is_it() -> None:
    """Slurm runs the script there; an old start has not recorded it."""
    began = state_of(BEGAN._replace(batch_host=""), ROUND)
    told = SlurmSays(log=LOG, failed=frozenset({"n1"}))
    assert [(Cause.NODE_LOSS, ("n1",))] == causes(began, NEXT, told)


def test_starts_that_no_agent_has_begun_are_charged_too() -> None:
    """Each one by its own part of the log, as far as that can be told apart."""
    log = f"{LOG}{WORD.format('PREEMPTION')}" + "".join(
        f"[10:00:0{start}] hpc_elastic finish: {mark_text(start, 'job', '7')}\n{words}"
        for start, words in ((1, ""), (2, WORD.format("TIME LIMIT")))
    )
    third = FIRST._replace(restart=3)
    found = [one.cause for one in of_job(state_of(BEGAN, ROUND), third, SlurmSays(log=log))]
    assert [Cause.PREEMPTION, Cause.UNKNOWN, Cause.TIME_LIMIT] == found
    assert [0, 1, 2] == [one.epoch.restart for one in of_job(RunState(), third, SlurmSays())]
    assert "PREEMPTION" in part_of(log, 0)
    assert "TIME LIMIT" not in part_of(log, 1)


def test_a_start_with_much_output_has_its_cause(paths: RunPaths, job: FakeJob) -> None:
    """Its mark is no longer in the end of the log that is read, but the word of Slurm is."""
    mark = f"[10:00:00] hpc_elastic finish: {mark_text(1, 'job', '7')}\n"
    log_of(paths, f"{LOG}{WORD.format('TIME LIMIT')}{mark}{LOG * 10000}{WORD.format('PREEMPTION')}")
    write(paths, BEGAN, Requeued(FIRST, Cause.TIME_LIMIT), BEGAN._replace(epoch=NEXT), round_of(NEXT))
    assert begin(paths, job, 2, RequeueBudgets())[0] is None
    found = [one.entry for one in read_records(paths) if isinstance(one.entry, Requeued)]
    assert [Cause.TIME_LIMIT, Cause.PREEMPTION] == [one.cause for one in found]


def test_a_part_without_a_mark_of_its_own_is_no_other_starts() -> None:
    """A start that could not mark its part is given none; nor one whose script may never have run."""
    log = f"[10:00:00] hpc_elastic finish: {mark_text(1, 'job', '7')}\n{WORD.format('PREEMPTION')}"
    assert ["", ""] == [part_of(log, 2, has_run=has_run) for has_run in (True, False)]
    assert [LOG, ""] == [part_of(LOG, 2, has_run=has_run) for has_run in (True, False)]


def test_the_rows_of_the_accounting_are_starts() -> None:
    """A job that has lost a node and ran on has a row for each of its sizes."""
    output = "RESIZING|n[1-3]\nNODE_FAIL|n[1-2]\nCANCELLED by 1000|n1\nRUNNING|n[1-2]\n"
    rows = read_past_starts(output)
    assert ["NODE_FAIL", "CANCELLED", "RUNNING"] == [row.state for row in rows]
    assert ("n1", "n2") == rows[0].nodes


class Anew(Slurm):
    """Slurm, whose nodes that are asked about have started anew.

    Args:
        job: the other commands.
    """

    def __init__(self, job: FakeJob) -> None:
        super().__init__(job.environ)

    def node_states(self, names: Sequence[str], job_ref: str | None) -> dict[str, LostNodeState]:  # noqa: ARG002
        """Return the first one, which is the batch host, so that it was lost alone."""
        return {names[0]: LostNodeState("idle", "", 1e12, in_job=True)}


def begin(
    paths: RunPaths, job: FakeJob, restart: int, budgets: RequeueBudgets
) -> tuple[Ended | None, list[str]]:
    """Begin a start of job 7; return its end if it may not begin, and the lines for the log."""
    said: list[str] = []
    start = Start(paths, FIRST._replace(restart=restart), "7", 2, local=False, srun_exit_code=0)
    job.set(Restarts=str(restart))
    return Finish(start, budgets, Anew(job), FastClock(), said.append).begin(), said


def log_of(paths: RunPaths, text: str) -> None:
    """Write the log of the batch script."""
    with open(paths.batch_log.replace("%j", "7"), "a", encoding="utf-8") as log:
        log.write(text)


@pytest.mark.parametrize(
    ("budgets", "most", "budget"),
    [
        (RequeueBudgets(max_node_losses=1), 1, Budget.NODE_LOSSES),
        (RequeueBudgets(max_node_losses=0), 0, Budget.NODE_LOSSES),
        (RequeueBudgets(max_requeues=2), 2, Budget.REQUEUES),
    ],
)
def test_a_budget_of_so_many_allows_so_many(
    paths: RunPaths, job: FakeJob, budgets: RequeueBudgets, most: int, budget: Budget
) -> None:
    """Though nobody but the next start is there to count; then the job is held, and says why."""
    log_of(paths, LOG)
    for restart in range(most + 1):
        if restart:
            log_of(paths, f"[10:00:00] hpc_elastic finish: {mark_text(restart, 'job', '7')}\n{LOG}")
            assert begin(paths, job, restart, budgets)[0] is None
        epoch = FIRST._replace(restart=restart)
        write(paths, BEGAN._replace(epoch=epoch), round_of(epoch, restart + 1))
    ended, said = begin(paths, job, most + 1, budgets)
    assert ended is not None
    assert ExitCode.REQUEUE == ended.code
    state = read_state(paths)
    assert state.ending is not None
    assert (Decision.HELD, budget) == (state.ending.decision, state.ending.budget)
    assert ["scontrol requeuehold 7"] == [call for call in job.calls if call.startswith("scontrol requeue")]
    assert any("has ended without a record (node_loss)" in line for line in said)
    assert (most + 1) == state.used(Cause.NODE_LOSS)
    faults = node_faults(read_records(paths), "r")
    assert [("n1", Fault.NODE_LOSS)] * (most + 1) == [(one.event.host, one.event.fault) for one in faults]


@pytest.mark.parametrize(
    ("cause", "budgets", "budget"),
    [
        (Cause.NODE_LOSS, RequeueBudgets(max_node_losses=1), Budget.NODE_LOSSES),
        (Cause.PREEMPTION, RequeueBudgets(max_preemptions=1), Budget.PREEMPTIONS),
        (Cause.TIME_LIMIT, RequeueBudgets(max_time_limits=1), Budget.TIME_LIMITS),
        (Cause.LAUNCH_FAILURE, RequeueBudgets(max_launch_failures=1), Budget.LAUNCH_FAILURES),
        (Cause.UNKNOWN, RequeueBudgets(max_requeues=1), Budget.REQUEUES),
        (Cause.UNKNOWN, RequeueBudgets(max_starts_without_save=2), Budget.STARTS_WITHOUT_SAVE),
    ],
)
def test_a_beginning_that_was_killed_before_it_held_the_job_is_done_again(
    paths: RunPaths, job: FakeJob, cause: Cause, budgets: RequeueBudgets, budget: Budget
) -> None:
    """The ends are charged already, and each budget still holds; one that is not exceeded holds nothing."""
    for restart in range(2):
        epoch = FIRST._replace(restart=restart)
        write(paths, BEGAN._replace(epoch=epoch), round_of(epoch, restart + 1))
        write(paths, DrainRequested(cause, "n1", AfterDrain.LEAVE, ""), StopAgreed(restart + 1, 5))
        write(paths, Requeued(epoch, cause, "found by the next start"))
    assert begin(paths, job, 2, RequeueBudgets())[0] is None
    ended, said = begin(paths, job, 2, budgets)
    assert ended is not None
    ending = read_state(paths).ending
    assert ending is not None
    assert (Decision.HELD, budget) == (ending.decision, ending.budget)
    assert not any("without a record" in line for line in said)
    assert begin(paths, job, 3, budgets)[0] is None  # its user has released it


def test_a_script_of_the_users_own_counts_too(paths: RunPaths, job: FakeJob) -> None:
    """Its job has taken up a run of another one: the agents have counted that as a further submission."""
    mine = FIRST._replace(submission=1)
    write(paths, BEGAN._replace(job_id="6"), ROUND, Drained(FIRST, Cause.TIME_LIMIT, 9, ""))
    write(paths, BEGAN._replace(epoch=mine), round_of(mine, 2))
    assert begin(paths, job, 1, RequeueBudgets())[0] is None
    ends = [record.entry for record in read_records(paths) if isinstance(record.entry, Requeued)]
    assert [(mine, Cause.UNKNOWN)] == [(entry.epoch, entry.cause) for entry in ends]


def test_starts_that_save_nothing_are_counted_though_finish_is_killed_each_time(
    paths: RunPaths, job: FakeJob
) -> None:
    """The workers tell their steps, so that it is known that they save nothing."""
    log_of(paths, WORD.format("PREEMPTION"))
    for restart in range(3):
        assert begin(paths, job, restart, RequeueBudgets())[0] is None
        epoch = FIRST._replace(restart=restart)
        write(paths, BEGAN._replace(epoch=epoch), round_of(epoch, restart + 1))
        write(paths, ASKED, StopAgreed(restart + 1, 5))
    assert begin(paths, job, 3, RequeueBudgets())[0] is not None
    ending = read_state(paths).ending
    assert ending is not None
    assert (Decision.HELD, Budget.STARTS_WITHOUT_SAVE) == (ending.decision, ending.budget)
    assert 3 == read_state(paths).used(Cause.PREEMPTION)


def test_each_end_is_charged_once_whoever_looks(paths: RunPaths, job: FakeJob) -> None:
    """A beginning that was killed half-way is done again."""
    log_of(paths, LOG)
    write(paths, BEGAN, ROUND)
    for _ in range(3):
        assert begin(paths, job, 2, RequeueBudgets())[0] is None
    found = [record.entry for record in read_records(paths) if isinstance(record.entry, Requeued)]
    assert [0, 1] == [entry.epoch.restart for entry in found]
    assert 2 == read_state(paths).requeues


def test_starts_that_are_lost_before_their_agents_come_end_the_run(paths: RunPaths, job: FakeJob) -> None:
    """Nothing tells why, so that no budget but that of all requeues counts them; a preemption is planned."""
    for restart in range(MAX_STARTS_IN_VAIN):
        assert begin(paths, job, restart + 1, RequeueBudgets())[0] is None
        if not restart:
            write(paths, BEGAN._replace(epoch=NEXT), Requeued(NEXT, Cause.PREEMPTION))
    ended, said = begin(paths, job, MAX_STARTS_IN_VAIN + 1, RequeueBudgets())
    assert ended is not None
    assert ExitCode.FAILED == ended.code
    assert "the run is failed: 5 starts of the job in a row brought no workers up" in said[-1]


def test_a_run_that_was_released_begins(paths: RunPaths, job: FakeJob) -> None:
    """Its budget is full again, and the hold itself was no end without a record."""
    log_of(paths, LOG)
    write(paths, BEGAN, ROUND)
    assert begin(paths, job, 1, RequeueBudgets(max_node_losses=0))[0] is not None
    assert begin(paths, job, 2, RequeueBudgets(max_node_losses=0))[0] is None
    assert 1 == len([one for one in read_records(paths) if isinstance(one.entry, Requeued)])


def test_a_second_job_that_starts_again_charges_nothing(paths: RunPaths, job: FakeJob) -> None:
    """The start that runs in the run directory is the run's own job's, and has not ended."""
    log_of(paths, LOG)
    write(paths, BEGAN._replace(job_id="6"), ROUND)
    assert begin(paths, job, 1, RequeueBudgets(max_node_losses=0)) == (None, [])
    assert not [one for one in read_records(paths) if isinstance(one.entry, Requeued)]
    assert "6" == read_state(paths).job_id


@pytest.mark.parametrize("restart", [1, 2])
def test_a_run_that_its_user_has_stopped_does_not_begin(paths: RunPaths, job: FakeJob, restart: int) -> None:
    """Its workers had saved; then all nodes were lost before the script came to write down the end."""
    stop = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
    write(paths, BEGAN, ROUND, stop, Drained(FIRST, Cause.STOP, 9, ""))
    ended, _ = begin(paths, job, restart, RequeueBudgets())
    assert ended is not None
    assert ExitCode.OK == ended.code
    ending = read_state(paths).ending
    assert ending is not None
    assert (Decision.STOPPED, "on request; checkpoint of step 9") == (ending.decision, ending.reason)
    assert begin(paths, job, restart + 1, RequeueBudgets()) == (None, [])  # its agents tell so


def test_an_earlier_job_that_starts_again_holds_nothing(paths: RunPaths, job: FakeJob) -> None:
    """The job that was submitted in its place runs, and goes on with fewer nodes than it began with."""
    write(paths, BEGAN, ROUND, Requeued(FIRST, Cause.PREEMPTION))
    link = FIRST._replace(link=1)
    write(paths, BEGAN._replace(epoch=link, job_id="8"), round_of(link, 2))
    write(paths, RoundEnded(2, Cause.NODE_LOSS, ("n2",), None), round_of(link, 3))
    assert begin(paths, job, 1, RequeueBudgets(max_node_losses=0)) == (None, [])
    state = read_state(paths)
    assert (None, "8") == (state.ending, state.job_id)
    assert state.running is not None


def test_a_start_begins_though_slurm_tells_nothing(paths: RunPaths, job: FakeJob) -> None:
    """It needs no answer to begin, and to wait for one would take the time of its nodes."""
    write(paths, BEGAN, ROUND, Requeued(FIRST, Cause.PREEMPTION))
    job.fail(show=99)
    clock = FastClock()
    start = Start(paths, FIRST._replace(restart=1), "7", 2, local=False, srun_exit_code=0)
    assert Finish(start, RequeueBudgets(), Slurm(job.environ), clock, print).begin() is None
    assert 0 == clock.now


def test_a_start_asks_slurm_about_the_nodes_of_the_last_one_alone(paths: RunPaths, job: FakeJob) -> None:
    """Those of earlier ones are known, and a Slurm that is slow would be waited for once for each."""
    for restart in range(3):
        epoch, cause = FIRST._replace(restart=restart), (Cause.NODE_LOSS, Cause.PREEMPTION)[restart == 2]
        lost = ("n1",) if cause is Cause.NODE_LOSS else ()
        write(paths, BEGAN._replace(epoch=epoch), Requeued(epoch, cause, nodes=lost))
        start = Start(paths, FIRST._replace(restart=restart + 1), "7", 2, local=False, srun_exit_code=0)
        finish = Finish(start, RequeueBudgets(), Slurm(job.environ), FastClock(), print)
        before = len(job.questions)
        assert begin_with_nodes(finish, print) is None
        assert bool(lost) == (len(job.questions) > before)


def test_an_end_that_was_recorded_meanwhile_is_not_charged_again(paths: RunPaths, job: FakeJob) -> None:
    """The records may have been read before the newest one could be seen."""
    write(paths, BEGAN, ROUND)
    start = Start(paths, NEXT, "7", 2, local=False, srun_exit_code=0)
    log = open_log(paths, "batch")
    log.refresh()
    write(paths, RunEnded(Decision.HELD, ExitCode.REQUEUE, "a budget is spent", None))
    charge(log, start, Slurm(job.environ), print)
    assert not [one for one in read_records(paths) if isinstance(one.entry, Requeued)]


def test_an_end_that_a_killed_start_has_recorded_counts(paths: RunPaths, job: FakeJob) -> None:
    """That start had compared it with no budget; the next one does, whatever it finds itself."""
    write(paths, BEGAN, ROUND, Requeued(FIRST, Cause.PREEMPTION))
    ended, _ = begin(paths, job, 2, RequeueBudgets(max_preemptions=0))
    assert ended is not None
    ending = read_state(paths).ending
    assert ending is not None
    assert (Decision.HELD, Budget.PREEMPTIONS) == (ending.decision, ending.budget)


def test_a_killed_start_hides_no_starts_that_saved_nothing(paths: RunPaths, job: FakeJob) -> None:
    """Workers ran in two starts; the third was killed before it could begin."""
    told = (ASKED, StopAgreed(1, 4))
    write(paths, BEGAN, ROUND, *told, Requeued(FIRST, Cause.PREEMPTION))
    write(paths, BEGAN._replace(epoch=NEXT), round_of(NEXT, 2), Requeued(NEXT, Cause.PREEMPTION))
    ended, _ = begin(paths, job, 3, RequeueBudgets(max_starts_without_save=2))
    assert ended is not None
    ending = read_state(paths).ending
    assert ending is not None
    assert Budget.STARTS_WITHOUT_SAVE is ending.budget


@pytest.mark.parametrize("is_held", [True, False])
def test_a_task_that_was_released_begins(*, is_held: bool) -> None:
    """Though Slurm counts the requeue of the hold with the others; without a hold its requeues are used."""
    held = (RunEnded(Decision.HELD, ExitCode.REQUEUE, "a budget is spent", None),) if is_held else ()
    task = Facts(state_of(BEGAN, ROUND, *held), FIRST._replace(restart=3), None, "9_0", 0, is_task=True)
    choice = before_start(task, RequeueBudgets(max_requeues=2))
    assert is_held == (choice is None)
    assert before_start(task, RequeueBudgets(max_requeues=3)) is None


def test_the_node_of_a_task_that_its_next_start_finds_lost_is_remembered(paths: RunPaths) -> None:
    """The script of that start has written the record, which is no sign of life of the start before."""
    write(paths, BEGAN, TASKS)
    log = open_log(paths, "9_0", Role.SCRIPT)
    log.refresh()
    log.commit(lambda _state: RoundEnded(1, Cause.NODE_LOSS, ("n1",), None))
    assert [("n1", Fault.NODE_LOSS)] == [
        (one.event.host, one.event.fault) for one in node_faults(read_records(paths), "r")
    ]


OLD = "n1.5@9_0-0-0"
TASKS = RoundFormed(1, FIRST, (Member(OLD, "n1", 1), Member("n2.6@9_1-0-0", "n2", 1)), "n1", 1234, None)
TASK = TaskStart("9_0", 1, 0)


def test_the_end_of_a_task_is_charged_to_its_round() -> None:
    """As its agent would have done; that of another task, and one that has said so, is left alone."""
    state = state_of(BEGAN, TASKS)
    member = member_of(state, TASK)
    assert member is not None
    assert OLD == member.node_id
    failed = SlurmSays(log=LOG, failed=frozenset({"n1"}))
    lost, _ = of_task(state, member, failed, frozenset)
    assert RoundEnded(1, Cause.NODE_LOSS, ("n1",), None) == lost
    all_lost, _ = of_task(state, member, failed, lambda: {OLD, "n2.6@9_1-0-0"})
    assert RoundEnded(1, Cause.NODE_LOSS, ("n1", "n2"), None) == all_lost
    unknown, _ = of_task(state, member, SlurmSays(log=LOG), frozenset)
    assert isinstance(unknown, NodeLeft)
    assert Cause.UNKNOWN is unknown.cause
    left, _ = of_task(state, member, SlurmSays(log=WORD.format("PREEMPTION")), frozenset)
    assert isinstance(left, NodeLeft)
    assert (OLD, Cause.PREEMPTION) == (left.node_id, left.cause)
    assert 1 == state_of(BEGAN, TASKS, left).used(Cause.PREEMPTION)
    assert member_of(state_of(BEGAN, TASKS, left), TASK) is None
    assert member_of(state_of(BEGAN, TASKS, lost), TASK) is None
    assert member_of(state_of(BEGAN, TASKS, RunEnded(Decision.HELD, 75, "", None)), TASK) is None
    assert member_of(state, TASK._replace(restart=0)) is None
    assert member_of(state, TASK._replace(task="9_2")) is None
