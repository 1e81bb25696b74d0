"""A submitted run with records and lines of the account at given times, for commands that show runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpc_elastic.account.facts import Doing, WorkFact, encode_fact
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import journal
from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.store.shared_dir import SharedDirStore
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))
MEMBERS = (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2))
NAN = {"rank": 3, "node": "n2", "exitcode": 1, "message": "ValueError: loss is nan"}
BEGAN = 1_795_000_000.0


def crashed_once(saved: int = 10) -> tuple[tuple[float, Entry], ...]:
    """Return the records of a run that has crashed once, with their times, up to its next round.

    Args:
        saved: step of its newest checkpoint.
    """
    return (
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, saved)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(saved, None))),
    )


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a submitted run whose job Slurm knows as pending."""
    monkeypatch.chdir(tmp_path)
    job = FakeJob(tmp_path / "slurm")
    job.set(JobState="PENDING", Reason="BeginTime")
    monkeypatch.setenv("PATH", str(job.bin))
    return run_in(tmp_path, "toy-1", "toy", "7")


def run_in(folder: Path, run_id: str, name: str, job: str) -> RunPaths:
    """Make a submitted run without records."""
    paths = RunPaths(str(folder / run_id))
    for directory in paths.directories():
        os.makedirs(directory)
    identity = {"format": 1, "run_id": run_id, "name": name, "user": "me"}
    Path(paths.identity).write_text(json.dumps(identity))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": name}}))
    submissions.record(paths, Submission(0, "token", job))
    return paths


def write(paths: RunPaths, *entries: tuple[float, Entry]) -> None:
    """Write records with times of their own [s since the begin]."""
    store = SharedDirStore(paths.root)
    for number, (at, entry) in enumerate(entries, start=1):
        assert store.append("journal", number, journal.encode(entry, at=BEGAN + at, by="n1", role=Role.AGENT))


def write_facts(
    paths: RunPaths,
    *facts: tuple[int, float, int, int],
    began: int | None = None,
    gone: Sequence[tuple[int, float, int]] = (),
    total: int | None = None,
) -> None:
    """Write lines of the first node about steps: round, time [s since the begin], newest record, step.

    Args:
        paths: the run.
        facts: the lines.
        began: the step that the workers say they went on from in the first of them; None: they do not say.
        gone: lines that no worker is left: round, time and newest record.
        total: steps of the whole run, where the workers tell them.
    """
    os.makedirs(paths.account)
    lines = [
        encode_fact(
            WorkFact(
                *(number, Doing.STEP, BEGAN + at, at, "n1.1", known, step),
                total=total,
                began=None if place else began,
            )
        )
        for place, (number, at, known, step) in enumerate(facts)
    ]
    lines += [
        encode_fact(WorkFact(number, Doing.GONE, BEGAN + at, at, "n1.1", known)) for number, at, known in gone
    ]
    (Path(paths.account) / "n1.log").write_bytes(b"".join(lines))


def preempted(number: int) -> tuple[tuple[float, Entry], ...]:
    """Return a start that begins at step 0 and is requeued without a save."""
    epoch, at = Epoch(0, 0, number, 0), 1000.0 * number
    return (
        (at, EpochStarted(epoch, "7", ("n1", "n2"))),
        (at + 10, RoundFormed(number + 1, epoch, MEMBERS, "n1", 1, None)),
        (at + 700, Requeued(epoch, Cause.PREEMPTION)),
    )
