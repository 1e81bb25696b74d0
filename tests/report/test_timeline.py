"""The records of a run as lines for people."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    HangSuspected,
    MarkedCheckpoint,
    Member,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SetupFailure,
    SizeWanted,
    StopAgreed,
    WarningHeld,
)
from hpc_elastic.report.timeline import failure_text, names_text, span_text, timeline

FIRST, SECOND = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
CRASH = {"rank": 3, "node": "n2", "exitcode": -9, "message": "MemoryError: full\nmore"}
BOTH = (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2))


def texts(*entries: tuple[float, Entry], begun: Mapping[int, int] = {}) -> list[str]:
    """Return the lines for entries at these times."""
    records = [Record(number, at, "n1", entry) for number, (at, entry) in enumerate(entries, 1)]
    return [moment.text for moment in timeline(records, begun=begun)]


def test_a_lost_node_with_a_new_agent_is_not_said_to_be_missing() -> None:
    """In array mode a task starts its agent again on the same node."""
    told = texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (1, RoundFormed(1, FIRST, BOTH, "n1", 1, None, lost=("n2", "n3"))),
    )
    assert "round 1: 4 workers on n1, n2, without n3 (lost), formed in 1.0 s" == told[-1]


def test_a_worker_that_failed_for_want_of_a_lost_node_is_not_called_the_cause() -> None:
    """Only the next round tells of the loss; a crash before a round without one is a crash."""
    crash = RoundEnded(1, Cause.CRASH, ("n1",), CRASH)
    began = (0, EpochStarted(FIRST, "7", ("n1", "n2"))), (1, RoundFormed(1, FIRST, BOTH, "n1", 1, None))
    first = "rank 3 on n2: exit code -9 (killed by SIGKILL): MemoryError: full"
    lost = texts(*began, (3, crash), (9, RoundFormed(2, FIRST, BOTH[:1], "n1", 1, None, lost=("n2",))))
    assert f"round 1 ended after 2.0 s: lost n2; before that was known: {first}" == lost[2]
    whole = texts(*began, (3, crash), (9, RoundFormed(2, FIRST, BOTH, "n1", 1, None)))
    assert f"round 1 ended after 2.0 s: {first}" == whole[2]


def test_a_drain_of_an_earlier_start_is_no_part_of_this_one() -> None:
    """A start that finds too few nodes has taken its own time."""
    told = texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (1, RoundFormed(1, FIRST, BOTH, "n1", 1, None)),
        (2, DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "SIGTERM")),
        (100, EpochStarted(SECOND, "7", ("n1", "n2"))),
        (108, Drained(SECOND, Cause.JOIN_TIMEOUT, None, "")),
    )
    assert "this start is given up after 8.0 s: too few nodes came" == told[-1]


def test_a_setup_that_failed_is_told_with_its_line() -> None:
    """Nothing else in the records says which line it was."""
    line = SetupFailure("module load cuda/12: requeue 1 of at most 500", "setup", 127)
    told = texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (1, Requeued(FIRST, Cause.LAUNCH_FAILURE, "why", line)),
    )
    assert f"requeued ({line.text})" == told[-1]


def test_a_run_with_a_crash_a_loss_and_a_requeue() -> None:
    """Every record says in one line what happened, with its span where it ends something."""
    expected = [
        "job 7 started on n1, n2",
        "round 1: 4 workers on n1, n2, formed in 2.0 s",
        "round 1 ended after 10 s: rank 3 on n2: exit code -9 (killed by SIGKILL): MemoryError: full",
        "round 2: 4 workers on n1, n2, from step 40, formed in 0.5 s",
        "round 2 ended after 1 min 5 s: lost n2",
        "round 3: 2 workers on n1, formed in 0.0 s",
        "drain asked for on n1: SIGTERM",
        "all running ranks stop at step 50 at the latest",
        "drained (SIGTERM) in 3.0 s; checkpoint of step 50",
        "requeued (preemption)",
        "job 7 started on n1, n2 (restart 1)",
        "done: all workers succeeded",
    ]
    assert expected == texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (2, RoundFormed(1, FIRST, BOTH, "n1", 1, None)),
        (12, RoundEnded(1, Cause.CRASH, ("n2",), CRASH)),
        (12.5, RoundFormed(2, FIRST, BOTH, "n1", 1, MarkedCheckpoint(40, None))),
        (77.5, RoundEnded(2, Cause.NODE_LOSS, ("n2",), None)),
        (77.5, RoundFormed(3, FIRST, BOTH[:1], "n1", 1, None)),
        (80, DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", asked=Asked("SIGTERM"))),
        (81, StopAgreed(3, 50)),
        (83, Drained(FIRST, Cause.PREEMPTION, 50, "")),
        (84, Requeued(FIRST, Cause.PREEMPTION)),
        (200, EpochStarted(SECOND, "7", ("n1", "n2"))),
        (300, RunEnded(Decision.DONE, 0, "all workers succeeded", None)),
    )


def test_a_failed_run_tells_its_root_cause() -> None:
    """The last line says why and where."""
    ending = RunEnded(Decision.FAILED, 137, "all 3 restarts are used", CRASH)
    assert (
        "failed: all 3 restarts are used; rank 3 on n2: exit code -9 (killed by SIGKILL): MemoryError: full"
        == texts((0, ending))[-1]
    )


def test_a_pause_and_a_relaunch_are_told_apart_from_a_drain_and_a_start() -> None:
    """Nodes that join and a dead srun do not end the job."""
    lines = texts(
        (0, EpochStarted(FIRST, "7", ())),
        (1, RoundFormed(1, FIRST, BOTH, "n1", 1, None)),
        (2, DrainRequested(Cause.MEMBERSHIP, "n3", AfterDrain.REJOIN, "n3 wants to join")),
        (3, EpochStarted(FIRST._replace(relaunch=1), "7", ("n1",))),
    )
    assert ["pause asked for: n3 wants to join", "agents started again on n1 (relaunch 1)"] == lines[-2:]


@pytest.mark.parametrize(
    ("role", "epoch", "text"),
    [
        (Role.SCRIPT, FIRST._replace(relaunch=1), "no agent could be started again (relaunch 1)"),
        (Role.AGENT, FIRST._replace(relaunch=1), "agents started again (relaunch 1)"),
        (Role.SCRIPT, FIRST._replace(restart=1), "job 7 started (restart 1), but none of its agents"),
        (Role.AGENT, FIRST._replace(restart=1), "job 7 started (restart 1)"),
    ],
)
def test_a_start_in_which_no_agent_came_is_told_apart(role: Role, epoch: Epoch, text: str) -> None:
    """The job script records it, since no agent has, so that the next start is another one."""
    records = [Record(1, 0.0, "n1.1", EpochStarted(FIRST, "7", ("n1",)))]
    records.append(Record(2, 1.0, "batch", EpochStarted(epoch, "7", ()), role))
    assert text == timeline(records)[-1].text


def test_a_round_that_pauses_tells_its_own_length_and_who_asked() -> None:
    """Not the time since the pause was asked for; a node that joins is not a user who scales."""
    ended = RoundEnded(1, Cause.MEMBERSHIP, (), None)
    first = RoundFormed(1, FIRST, BOTH, "n1", 1, None)
    lines = texts(
        (0, EpochStarted(FIRST, "7", ())),
        (1, first),
        (4.7, SizeWanted(0, 1, "hpc-elastic scale")),
        (4.8, DrainRequested(Cause.MEMBERSHIP, "", AfterDrain.REJOIN, "scale to 1 node")),
        (5, ended),
        (6, first._replace(number=2, members=BOTH[:1])),
        (8, DrainRequested(Cause.MEMBERSHIP, "n3", AfterDrain.REJOIN, "n3 wants to join")),
        (9, ended._replace(number=2)),
    )
    assert "round 1 paused after 4.0 s: 1 node wanted (hpc-elastic scale)" in lines
    assert "round 2: 2 workers on n1, formed in 1.0 s" in lines
    assert "round 2 paused after 3.0 s: n3 wants to join" == lines[-1]


def test_a_hang_is_told_from_the_suspicion_on() -> None:
    """Who asked and why, then who it is: a hang is no exit."""
    message = "no progress for 12 s (limit 10 s): rank 3 (n2): step 5, in load (t.py:3)"
    failure = {"rank": 3, "node": "n2", "exitcode": 83, "message": message}
    lines = texts(
        (0, EpochStarted(FIRST, "7", ())),
        (1, RoundFormed(1, FIRST, BOTH, "n1", 1, None)),
        (20, HangSuspected(1, 1, "n1", "ranks 0, 1: no progress for 12 s (limit 10 s)")),
        (21, RoundEnded(1, Cause.HANG, ("n2",), failure)),
    )
    assert [
        "stacks of all ranks asked for by n1: ranks 0, 1: no progress for 12 s (limit 10 s)",
        f"round 1 ended after 20 s: rank 3 on n2: hangs: {message}",
    ] == lines[-2:]


def test_records_that_changed_nothing_are_left_out() -> None:
    """A late write of a fenced agent is no event."""
    late = EpochStarted(FIRST, "7", ())
    assert 1 == len(texts((0, EpochStarted(SECOND, "7", ())), (1, late)))


def test_a_start_that_was_written_to_end_a_waiting_job_is_left_out() -> None:
    """The job never ran."""
    start = Record(1, 0.0, "login", EpochStarted(FIRST, "7", ()), Role.COMMAND)
    ending = Record(2, 0.0, "login", RunEnded(Decision.STOPPED, 0, "", None), Role.COMMAND)
    assert ["stopped"] == [moment.text for moment in timeline([start, ending])]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (7500, "2 h 5 min"),
        (200000, "2 d 7 h"),
    ],
)
def test_spans(seconds: float, expected: str) -> None:
    """A span has one or two units."""
    assert expected == span_text(seconds)


def test_many_names_are_cut_short() -> None:
    """A thousand nodes fit on a line."""
    assert "n0, n1, n2, n3, n4, n5, n6 and 993 more" == names_text(tuple(f"n{i}" for i in range(1000)))


def test_a_hint_of_ours_on_stderr_is_no_reason_of_a_failure() -> None:
    """The last line of the worker's own is."""
    hint = "hpc_elastic.worker: should_stop() is called and tick() is not"
    assert "rank 1: exit code 3: no GPU" == failure_text(
        {"rank": 1, "exitcode": 3, "stderr_tail": f"no GPU\n{hint}"}
    )
    assert "rank 1: exit code 3" == failure_text({"rank": 1, "exitcode": 3, "stderr_tail": hint})


def test_advice_below_an_error_of_cuda_is_no_reason_of_a_failure() -> None:
    """Nor is the state that a program keeps as it ends."""
    tail = """
[rank1]: torch.AcceleratorError: CUDA error: device-side assert triggered
[rank1]: Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda for more information.
[rank1]: CUDA kernel errors might be asynchronously reported at some other API call.
[rank1]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1
[rank1]: Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

hpc_elastic.frameworks.torch: the state was not kept: CUDA error: device-side assert triggered
"""
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered"
    assert f"rank 1: exit code 1: {error}" == failure_text({"rank": 1, "exitcode": 1, "stderr_tail": tail})


def test_a_long_error_is_cut_between_words() -> None:
    """One line has its beginning, the log has all of it."""
    told = failure_text({"rank": 1, "exitcode": 3, "message": "word " * 23 + "unusual sentence"})
    assert f"rank 1: exit code 3: {'word ' * 23}..." == told


def test_nodes_that_did_not_come_are_named() -> None:
    """Where the start is given up, and where the job is given back."""
    detail = "1 of 2 nodes joined within 60 s; missing: n2"
    told = texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (60, Drained(FIRST, Cause.JOIN_TIMEOUT, None, detail)),
        (61, Requeued(FIRST, Cause.JOIN_TIMEOUT)),
    )
    why = f"too few nodes came: {detail}"
    assert [f"this start is given up after 1 min 0 s: {why}", f"requeued ({why})"] == told[1:]


def test_a_warning_that_came_too_early_is_told() -> None:
    """With when the workers are asked instead."""
    told = texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (2, RoundFormed(1, FIRST, BOTH, "n1", 1, None)),
        (3, WarningHeld(1, "n1", 117.6, 30.0)),
    )
    assert (
        "n1 was warned 118 s before the time limit, which is most of this start: workers are asked to save "
        "30 s before it"
    ) == told[-1]


def test_a_round_is_told_with_the_step_that_its_workers_went_on_from() -> None:
    """It may be newer than the checkpoint; until they have told, only the checkpoint is known."""
    mark = MarkedCheckpoint(40, None)
    told = texts(
        (0, EpochStarted(FIRST, "7", ("n1", "n2"))),
        (1, RoundFormed(1, FIRST, BOTH, "n1", 1, None)),
        (2, RoundEnded(1, Cause.CRASH, ("n2",), CRASH)),
        (3, RoundFormed(2, FIRST, BOTH, "n1", 1, mark)),
        (4, RoundEnded(2, Cause.CRASH, ("n2",), CRASH)),
        (5, RoundFormed(3, FIRST, BOTH, "n1", 1, mark)),
        begun={1: 0, 2: 57},
    )
    sized = "4 workers on n1, n2"
    assert [
        f"round 1: {sized}, formed in 1.0 s",
        f"round 2: {sized}, from step 57, formed in 1.0 s",
        f"round 3: {sized}, newest checkpoint: step 40, formed in 1.0 s",
    ] == told[1::2]
