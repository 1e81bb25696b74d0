"""A run as it is written: records of every kind, and the files of whole run directories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hpc_elastic.account.facts import Doing, WorkFact, encode_fact
from hpc_elastic.node.setup import hang_times
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints, journal
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
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    MarkedCheckpoint,
    Member,
    NeverAsked,
    NodeLeft,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Note,
    Notified,
    RanksStopped,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    RunEvent,
    SetupFailure,
    SizeWanted,
    StopAgreed,
    StopKind,
    TaskStopped,
    WarningHeld,
)
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import JobRecord
from hpc_elastic.store import node_ledger
from hpc_elastic.store.kv import versions
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.shared_dir import record_name, segment_name

Files = Mapping[str, bytes]  # path below the run directory -> content
E0, E1, E2 = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0), Epoch(0, 0, 1, 1)
_MEMBERS = (Member("n1.7", "n1", 2), Member("n2.8", "n2", 2))
_FAILURE = {
    "rank": 3, "local_rank": 1, "node": "n2", "pid": 12, "exitcode": -9, "message": "ValueError: bad",
    "traceback": "Traceback ...", "stderr_tail": "killed", "log": "", "timestamp": 1700000000.5, "ran_s": 3.5,
}  # fmt: skip
_START = (
    EpochStarted(E0, "7", ("n1", "n2"), "n1", "1:2"),
    RoundFormed(1, E0, _MEMBERS, "n1", 1234, MarkedCheckpoint(4, "/ckpt/4"), ("n3",)),
)
_CRASHED = (
    *_START,
    RoundEnded(1, Cause.CRASH, ("n2",), _FAILURE, 4),
    FailedAlike(E0, 1, "n1"),
    DrillBegan(E0, "5f0c", "n1", "drill: rank 0 on n1 is killed"),
    DrillCalledOff(E0, "5f0c", "nothing was struck"),
    Note(E0, "a note"),
    NodeUnfit(E0, "n3", "disk full"),
    RoundFormed(2, E0, _MEMBERS[:1], "n1", 1235, None),
    HangSuspected(2, 1, "n1", "rank 0 has been silent for 30 s"),
)
_REQUEUED = (
    *_CRASHED,
    DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "SIGTERM", E0, 30.0),
    DrainExplained(E0, Cause.PREEMPTION, "preempted, with grace", 25.0),
    StopAgreed(2, 12),
    NeverAsked(2),
    RanksStopped(2, "node2", (3,)),
    NodeSlow(2, "n1", 1, 1.5, 1.0, 1.1),
    WarningHeld(2, "n1", 118.0, 30.0),
    FailedLeaving(E0, 2, "n1", _FAILURE),
    NodeTaken(E0, "n3", "it is down by hand", 2),
    Drained(E0, Cause.PREEMPTION, 12, "", 1.5, Asked("SIGTERM", Answer.DENIES, "it runs on"), ("n3",)),
    Requeued(E0, Cause.PREEMPTION, "preemption", SetupFailure("x", "setup", 127), "SIGTERM"),
    EpochStarted(E1, "7", ("n1", "n2"), "n1", "1:2"),
    SizeWanted(0, 2, "alice", 1, 1),
    NodeLeft(E1, "n2.8", "n2", Cause.MEMBERSHIP, "given back"),
    TaskStopped(E1, StopKind.HELD, "7_1", 2, "n2", "a budget is spent"),
)
ENTRIES: tuple[Entry, ...] = (
    *_REQUEUED,
    RunEnded(Decision.FAILED, 137, "a worker failed", _FAILURE, E1),
    Notified(E1, RunEvent.FAILED, 26),
)
_STORIES: Mapping[str, Sequence[Entry]] = {
    "running": _START,
    "crashed": _CRASHED,
    "requeued": _REQUEUED,
    "failed": ENTRIES,
    "held": (
        *_REQUEUED,
        RunEnded(Decision.HELD, 75, "spent", None, E1, Budget.PREEMPTIONS),
    ),
    "stopping": (*_START, DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "stop", E0)),
    "done": (*_START, RunEnded(Decision.DONE, 0, "all workers succeeded", None, E0)),
    "empty": (),
}
STORIES = tuple(_STORIES)
_SPEC = {
    "command": ["train.py"], "name": "toy", "nodes": "1:2", "gpus_per_node": 2, "time": "04:00:00",
    "max_restarts": 3, "max_requeues": 9, "chain": 2, "join_timeout": 600.0, "hang_timeout": "auto",
}  # fmt: skip


FACTS = (
    WorkFact(1, Doing.STARTED, 1700000001.5, 100.5, "n1.7", 2),
    WorkFact(1, Doing.IMPORTED, 1700000002.5, 101.5, "n1.7", 2),
    WorkFact(1, Doing.STEP, 1700000003.5, 102.5, "n1.7", 2, 4, 0.0, 100),
    WorkFact(1, Doing.GONE, 1700000004.5, 103.5, "n1.7", 3, None, 0.5),
)
"""Lines of an agent about a round."""


def files_of(story: str, *, mode: str = "step") -> Files:
    """Return the files of a run.

    Args:
        story: one of `STORIES`.
        mode: how it is deployed: step or array.
    """
    spec = {**_SPEC, "mode": mode}
    identity = {
        "format": 1,
        "version": "0.1.0",
        "run_id": "toy-1",
        "name": "toy",
        "user": "alice",
        "token": "t",
    }
    token = "hpc_elastic:ab"  # noqa: S105 - a comment of a job
    found: dict[str, bytes] = {
        "run.json": json.dumps(identity).encode(),
        "job.json": json.dumps({"format": 1, "spec": spec}).encode(),
        "job.sbatch": b"#!/bin/bash\nexport HPC_ELASTIC_RUN_DIR=/r\n",
        "batch.sh": b"echo\n",
        "site.json": json.dumps({"format": 1, **Site()._asdict()}).encode(),
        "submissions/000000.intent": submissions.encode_record(JobRecord(token, time="2026-01-01 00:00:00")),
        "submissions/000000.json": submissions.encode_record(JobRecord(token, "7", "2026-01-01 00:00:00")),
        "submissions/000000-0001.json": submissions.encode_record(JobRecord(f"{token}.1", "8")),
        "members/n1.7+0-0-1-0+running+2+12+5": b"",
        "members/n2.8+0-0-1-0+joining+3+1+5": b"",
        "members/news+3": b"",
        "nodes/batch.beat": b"12\n",
        "nodes/n1.7.held": b"a critical section\n",
        "nodes/n1.7+2.json": json.dumps([list(_MEMBERS[0]), "n1", "10.0.0.1", 1234]).encode(),
        "activity/n1+2+1700000000+3+7+8+1+0+-": b"",
        "paces/n1+2+7+1500000+1+1100000": b"",
        "account/n1.log": b"".join(map(encode_fact, FACTS)),
        "timeouts/n1.json": json.dumps(
            hang_times.encode({"step": hang_times.Length(1.5, 30)}, (0,))
        ).encode(),
        "kv/scope/a+00000001": versions.encode_record(
            versions.nothing_yet(b"a").successor(b"42", deleted=False, writer="5f0c")
        ),
        "logs/attempt_2/0/stdout.log": b"step 1\nstep 2\n",
        "logs/attempt_2/0/stderr.log": b"oh\n",
        "logs/agents/n1.log": b"[12:00:00 n1] round 2: starting ranks 0-1 of 2\n",
        "logs/hang-2/n1.json": b'{"format": 1, "ranks": [{"rank": 0, "node": "n1", "step": 4}]}',
        "slurm-7.out": b"hpc_elastic: setup failed (exit code 127): module load x\n",
    }
    found |= {f"checkpoints/{name}": data for name, data in _marks()}
    for number, entry in enumerate(_STORIES[story], start=1):
        path = f"journal/{segment_name(number)}/{record_name(number)}"
        found[path] = journal.encode(entry, at=1767225600.0 + number, by="n1")
    return found


def _marks() -> list[tuple[str, bytes]]:
    marks = [checkpoints.MarkName(12, 2, rank, 2) for rank in range(2)]
    return [(checkpoints.encode_name(mark), checkpoints.encode_mark(mark, "/c", 2, 0.5)) for mark in marks]


def ledger_files() -> Files:
    """Return the files of a ledger, relative to the folder of the runs."""
    events = [
        NodeEvent("n1", Fault.UNFIT, 1767225600.5, "toy-1-0", "toy-1", "disk full"),
        NodeEvent("n2", Fault.CRASH_LOOP, 1767225700.5, "toy-1-1", "toy-1", "the same failure 3 times"),
        NodeEvent("n2", Fault.FORGIVEN, 1767225800.5, "alice", "", ""),
    ]
    return {
        f".hpc_elastic/nodes/{node_ledger.name_of(event)}": json.dumps(
            {"format": node_ledger.FORMAT, **event._asdict()}
        ).encode()
        for event in events
    }


def directories() -> tuple[str, ...]:
    """Return the directories of a run, below its root."""
    root = "/"
    return tuple(path.removeprefix(root) for path in RunPaths(root).directories())
