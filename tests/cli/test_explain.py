"""What ``explain`` says of a run, to people and to programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, WayBack, write_mark, write_way_back
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    DrainRequested,
    DrillBegan,
    Epoch,
    EpochStarted,
    FailedAlike,
    MarkedCheckpoint,
    NodeUnfit,
    RanksStopped,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from tests.cli.recorded_runs import (
    EPOCH,
    MEMBERS,
    NAN,
    STARTED,
    crashed_once,
    paths,
    preempted,
    write,
    write_facts,
)

__all__ = ["paths"]


def explained(paths: RunPaths, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what the command prints."""
    assert 0 == app.run(["explain", *words, paths.root])
    return capfd.readouterr().out


def flat(out: str) -> str:
    """Return a text without its line ends."""
    return " ".join(out.split())


def test_a_job_script_is_asked_for_no_goodput(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """It tells no steps, so only the use of its time is told."""
    write(paths, *preempted(0))
    (Path(paths.root) / "job.json").write_text('{"format": 1, "spec": {"mode": "script"}}')
    out = flat(explained(paths, capfd))
    assert "oodput" not in out.partition("To do:")[0]
    assert "worker.tick" not in out


def test_starts_without_progress_are_told_at_first_sight(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Five starts from step 0 that saved nothing are one stop of five, with what helps."""
    write(paths, *(entry for number in range(5) for entry in preempted(number)))
    facts = [
        (number + 1, 1000.0 * number + at, 3 * number + 2, step)
        for number in range(5)
        for at, step in ((50, 1), (600, 90))
    ]
    write_facts(
        paths, *facts, gone=[(number + 1, 1000.0 * number + 610, 3 * number + 2) for number in range(5)]
    )
    out = explained(paths, capfd)
    assert "Stopped 5 times:\n  1-5. 5 times, " in out
    assert ": preemption cost " in flat(out)
    assert "5 starts in a row began from step 0 and saved nothing newer" in flat(out)
    assert "in all, 360 steps lost" in out
    assert out.index("no checkpoint is marked") < out.index("5 starts in a row began")


def test_a_user_who_goes_back_is_told_so_and_no_stop_is_blamed(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """The steps between the newest checkpoint and the one gone back to were given up, and not lost."""
    again = Epoch(1, 0, 0, 0)
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, 10)),
        (155.0, RunEnded(Decision.FAILED, 1, "a worker failed", NAN)),
        (200.0, EpochStarted(again, "8", ("n1", "n2"))),
        (210.0, RoundFormed(2, again, MEMBERS, "n1", 1, MarkedCheckpoint(4, None))),
    )
    write_facts(paths, (1, 50.0, 2, 1), (1, 100.0, 2, 15))
    write_way_back(paths, WayBack(2, 0, 4, 1, 0))
    told = "5 steps lost; continued in the next start from step 4, as --from-step asked; the newest"
    assert f"{told} checkpoint then was of step 10" in flat(explained(paths, capfd))


def test_a_failure_names_rank_node_cost_and_evidence(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """A crash that ended a run says which rank on which node, the steps that it cost, and the log to read."""
    write(
        paths,
        *crashed_once(),
        (300.0, RoundEnded(2, Cause.CRASH, ("n2",), NAN, 10)),
        (301.0, RunEnded(Decision.FAILED, 1, "a worker failed and all 1 restarts are used", NAN)),
    )
    facts = (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 170.0, 4, 11), (2, 290.0, 4, 41)
    write_facts(paths, *facts, gone=[(1, 152.0, 3), (2, 300.5, 5)])
    write_mark(paths, MarkName(10, 1, 0, 1), None, 4)
    log = Path(paths.attempt_logs(2)) / "3" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("boom")
    out = explained(paths, capfd)
    assert out.startswith("toy: failed: a worker failed and all 1 restarts are used; rank 3 on n2: exit\n")
    assert "1-2. 2 times, " in out
    assert "rank 3 on n2: exit code 1: ValueError: loss is nan" in flat(out)
    assert "11 steps lost; the run ended then; 31 steps after the last checkpoint lost" in flat(out)
    assert "see logs/attempt_2/3/stderr.log\n" in out
    assert "always on n2" in out
    assert f"hpc-elastic logs {paths.root}" in flat(out)


def test_a_node_that_has_left_for_its_failures_need_not_be_left_out(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run goes on without it by itself."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, None)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, None)),
        (300.0, RoundEnded(2, Cause.CRASH, ("n2",), NAN, None)),
        (301.0, NodeUnfit(EPOCH, "n2", "the same failure 2 times in a row", by_failures=True)),
        (302.0, RoundFormed(3, EPOCH, MEMBERS[:1], "n1", 1, None)),
    )
    assert "nodes suspect" not in flat(explained(paths, capfd))


def test_a_failure_on_several_nodes_blames_none(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A node whose workers failed first is not the only one, where others say that theirs failed alike."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, None)),
        (150.5, FailedAlike(EPOCH, 1, "n1")),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, None)),
        (300.0, RoundEnded(2, Cause.CRASH, ("n2",), NAN, None)),
        (301.0, RunEnded(Decision.FAILED, 1, "a worker failed", NAN)),
    )
    out = flat(explained(paths, capfd))
    assert "(on n2, n1)" in out
    assert "will come again: mend the program" in out
    assert "nodes suspect" not in out


KILLED = {"rank": 1, "node": "n2", "exitcode": -9, "message": ""}


@pytest.mark.parametrize(("failure", "told"), [(KILLED, "dmesg"), (NAN, "mend the program")])
def test_a_worker_that_is_killed_as_it_starts_is_no_fault_of_the_program(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], failure: dict[str, object], told: str
) -> None:
    """Whether the program tells steps and marks its saves is not known before its first step."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS[:1], "n1", 1, None)),
        (12.0, RoundEnded(1, Cause.CRASH, ("n1",), failure, None)),
        (13.0, RoundFormed(2, EPOCH, MEMBERS[:1], "n1", 1, None)),
        (15.0, RoundEnded(2, Cause.CRASH, ("n1",), failure, None)),
        (16.0, RunEnded(Decision.FAILED, 1, "a worker failed", failure)),
    )
    out = flat(explained(paths, capfd))
    assert told in out.partition("To do:")[2]
    assert "worker.tick" not in out
    assert "no checkpoint is marked" not in out


def test_the_crashes_of_drills_are_no_fault_of_the_program(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """The user has killed the worker."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (11.0, DrillBegan(EPOCH, "a", "n2", "drill: rank 1 on n2 is killed")),
        (12.0, RoundEnded(1, Cause.CRASH, ("n2",), KILLED, None)),
        (13.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, None)),
        (14.0, DrillBegan(EPOCH, "b", "n2", "drill: rank 1 on n2 is killed")),
        (15.0, RoundEnded(2, Cause.CRASH, ("n2",), KILLED, None)),
        (16.0, RoundFormed(3, EPOCH, MEMBERS, "n1", 1, None)),
    )
    assert "same failure" not in flat(explained(paths, capfd))


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (
            10,
            "at most 11 steps lost; continued in the next round from step 10, or from a newer one in memory",
        ),
        (21, "continued in the next round from step 21"),
    ],
)
def test_a_state_in_memory_may_be_newer_than_the_checkpoint(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], saved: int, told: str
) -> None:
    """As long as the workers of the next round have not told; not if the newest step was saved."""
    write(paths, *crashed_once(saved))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), began=0, gone=[(1, 152.0, 3)])
    out = flat(explained(paths, capfd))
    assert told in out
    assert ("in memory" in out) == (saved == 10)
    found = json.loads(explained(paths, capfd, "--json"))
    (stop,) = found["stops"]
    assert (0, 21 - saved) == (stop["lost_steps"], stop["perhaps_lost_steps"])
    assert 0 == found["account"]["lost_steps"]


def test_a_failed_run_without_a_checkpoint_has_lost_all_steps(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those before the first line of its round are among them."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, None)),
        (151.0, RunEnded(Decision.FAILED, 1, "a worker failed", NAN)),
    )
    write_facts(paths, (1, 40.0, 2, 18), (1, 140.0, 2, 41), gone=[(1, 150.5, 3)])
    assert "the run ended then; 41 steps lost, as no checkpoint is marked" in flat(explained(paths, capfd))


@pytest.mark.parametrize(
    ("saved", "is_gone", "told"),
    [
        (10, True, ", 11 steps lost; continued in the next round from step 10"),
        (10, False, ", at least 11 steps lost; continued in the next round from step 10"),
        (21, True, "s; continued in the next round from step 21"),
        (21, False, ", lost steps not known; continued in the next round from step 21"),
    ],
)
def test_steps_after_the_last_words_of_a_killed_agent_are_not_known(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], saved: int, *, is_gone: bool, told: str
) -> None:
    """An agent writes the newest step when no worker is left, but one that is killed does not."""
    write(paths, *crashed_once(saved))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), gone=[(1, 152.0, 3)] if is_gone else [])
    assert told in flat(explained(paths, capfd))
    found = json.loads(explained(paths, capfd, "--json"))
    (stop,), (cause,) = found["stops"], found["account"]["causes"]
    assert [(21 - saved, not is_gone)] * 3 == [
        (one["lost_steps"], one["lost_at_least"]) for one in (stop, cause, found["account"])
    ]


def test_a_failed_run_whose_agent_was_killed_has_lost_at_least_the_steps_that_it_told(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """There is no round after it that would tell more."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, None)),
        (151.0, RunEnded(Decision.FAILED, 1, "a worker failed", NAN)),
    )
    write_facts(paths, (1, 40.0, 2, 18), (1, 140.0, 2, 41))
    told = "the run ended then; at least 41 steps lost, as no checkpoint is marked"
    assert told in flat(explained(paths, capfd))


def test_hangs_point_to_the_stacks_of_all_ranks(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The advice after hangs is the file with the stacks, which the last stop names."""
    hung = {"rank": 1, "node": "n1", "exitcode": 83, "message": "no progress at train.py:8"}
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.HANG, ("n1",), hung, 10)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(10, None))),
        (300.0, RoundEnded(2, Cause.HANG, ("n1",), {**hung, "message": "no progress at train.py:9"}, 10)),
        (301.0, RunEnded(Decision.FAILED, 83, "the workers hung", hung)),
    )
    write_mark(paths, MarkName(10, 1, 0, 1), None, 4)
    stacks = Path(paths.hang_logs(2, 1))
    stacks.parent.mkdir(parents=True, exist_ok=True)
    stacks.write_text("stacks")
    out = flat(explained(paths, capfd))
    assert f"see {os.path.relpath(stacks, paths.root)}" in out
    assert "the workers hung (2 times): the log of the last hang above has the stacks of all ranks" in out


def test_hangs_at_one_place_are_told_as_one(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Two hangs of different ranks in the same call are one stop that came twice."""
    hung = {"rank": 1, "node": "n1", "exitcode": 83, "message": "rank 1 hangs", "place": "load train.py"}
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.HANG, ("n1",), hung, 10)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(10, None))),
        (300.0, RoundEnded(2, Cause.HANG, ("n2",), {**hung, "message": "ranks 2 (n2), 3 (n2)"}, 10)),
    )
    assert "  1-2. 2 times, " in explained(paths, capfd)


def test_an_end_without_a_record_is_called_that(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Where no record tells why a start was left, explain says so and names no cause."""
    second = Epoch(0, 0, 1, 0)
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (400.0, EpochStarted(second, "7", ("n1", "n2"))),
    )
    out = explained(paths, capfd)
    assert "the start ended without a record of its end: its nodes or its job were gone" in flat(out)
    assert "worker.tick(step)" in out


def test_a_run_that_has_not_begun_is_explained(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Without any record there is the queue, and the next command."""
    out = explained(paths, capfd)
    assert out.startswith("toy: queued, waits for its time (Slurm's reason: BeginTime)\n")
    assert "Nothing to do: it goes on by itself. To see more:\n  - hpc-elastic status " in out


def test_a_run_that_its_user_stops_does_not_go_on(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Its workers save and leave, as for a preemption, after which it would go on."""
    wish = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)), (20.0, wish))
    write_facts(paths, (1, 15.0, 2, 1))
    write_mark(paths, MarkName(1, 1, 0, 1), None, 4)
    assert "\nTo do:\n" in explained(paths, capfd)


@pytest.mark.parametrize("name", ["run.json", "job.json"])
def test_a_damaged_file_is_to_be_mended_first(
    name: str, paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named with its fix before the next command, as in the status."""
    place = Path(paths.root) / name
    place.unlink()
    os.mkfifo(place)
    lines = explained(paths, capfd).splitlines()
    first, *others = lines[lines.index("To do:") + 1 :]
    assert first.startswith(f"  - {place} cannot be read")
    assert ", fix: " in first
    assert others


def test_ranks_that_are_stopped_are_named(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The run stands still until they go on, so what lets them do so is the first thing to do."""
    formed = RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)
    write(paths, (0.0, STARTED), (1.0, formed), (9.0, RanksStopped(1, "n2", (2, 3))))
    out = explained(paths, capfd)
    todo = out.partition("To do:\n")[2].splitlines()
    assert any("kill -CONT" in line and "n2" in line for line in todo[:-1])


def test_programs_get_the_same_as_json(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The document has its format, the account in seconds, and each stop with its cause."""
    write(paths, *(entry for number in range(2) for entry in preempted(number)))
    write_facts(paths, (1, 50.0, 2, 1), (1, 600.0, 2, 90), (2, 1050.0, 5, 1), (2, 1600.0, 5, 90))
    found = json.loads(explained(paths, capfd, "--json"))
    assert (1, "explain", paths.root, "7", "requeued") == (
        *(found["format"], found["kind"], found["run"]),
        *(found["job"], found["phase"]),
    )
    assert 550.0 == found["account"]["seconds"]["training"]
    assert pytest.approx(found["account"]["wall_s"], abs=0.1) == sum(found["account"]["seconds"].values())
    (stop,) = found["stops"]
    assert ("preemption", 2, 178) == (stop["cause"], stop["times"], 89 + 89)
    assert [0, 0] == [start["began_step"] for start in found["account"]["starts"]]
    assert ["mark_saves", "save_at_all"] == [one["advice"] for one in found["advice"]]


def test_a_removed_record_is_no_end_of_the_run(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Each command that reads the journal names the record that is missing, and tells nothing of the rest."""
    write(paths, *(entry for number in range(2) for entry in preempted(number)))
    gone = Path(paths.root) / "journal" / "000000" / "00000003"
    gone.unlink()
    for command in ("explain", "status", "report", "timeline", "logs"):
        assert 2 == app.run([command, paths.root])
        out, err = capfd.readouterr()
        assert "" == out
        assert f"error: {gone}: journal record 3 was removed; later records are there\n  fix: " in err


def test_lines_fit_a_terminal(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """No line is longer than 80 columns but for a path that cannot be broken."""
    write(paths, *(entry for number in range(5) for entry in preempted(number)))
    long = [line for line in explained(paths, capfd).splitlines() if len(line) > 80]
    assert [] == [line for line in long if paths.root not in line]
