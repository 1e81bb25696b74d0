"""How fast commands answer about a large run: 1,000 rounds on 512 nodes, 5,000 records, logs of 10 GB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench_lib.group import GroupError, environment
from bench_lib.launchers import HPC_ELASTIC, Effort, Launcher, Samples
from hpc_elastic.account.facts import Doing, WorkFact, encode_fact
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import journal
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Note,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.store.shared_dir import SharedDirStore

NODES, RANKS, ROUNDS, RECORDS = 512, 8, 1000, 5000
STARTS = 50  # of the job, so that each has twenty rounds
LOG_BYTES = 10 << 30  # of all logs of the newest round; sparse, with lines at their ends
ROUND_S = 600.0  # length of a round
_LINES = b"".join(b"step %d: loss 0.1\n" % step for step in range(100))
COMMANDS = {
    "status": ("status",),
    "status_json": ("status", "--json"),
    "explain": ("explain",),
    "report": ("report", "-o", os.devnull),
    "report_json": ("report", "--format", "json"),
    "timeline": ("timeline",),
    "logs": ("logs", "-n", "100"),
    "logs_rank": ("logs", "--rank", "4000", "-n", "100"),
}


def answers(launcher: Launcher, effort: Effort) -> Samples:
    """Command started -> command ended [s], for each of `COMMANDS`; of ours alone."""
    if launcher.name != HPC_ELASTIC.name:
        return {}
    samples: Samples = {f"{name}_answer_s": [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        paths = large_run(Path(place) / "large-1", ROUNDS, RECORDS)
        environ = {**environment(Path(os.devnull)), "PATH": "/no/such/place"}  # Slurm is not asked
        for _ in range(effort.repetitions):
            for name, words in COMMANDS.items():
                began_s = time.monotonic()
                argv = [sys.executable, "-m", "hpc_elastic", words[0], paths.root, *words[1:]]
                said = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
                samples[f"{name}_answer_s"].append(time.monotonic() - began_s)
                if said.returncode or not (said.stdout or name == "report"):
                    raise GroupError(f"{' '.join(words)}: {said.stdout[-500:]}{said.stderr[-500:]}")
    return samples


def large_run(root: Path, rounds: int, records: int, nodes: int = NODES) -> RunPaths:
    """Make a run that is held after its last round; return its files.

    Args:
        root: the run directory.
        rounds: how many there are.
        records: of the journal, at least; notes fill it up.
        nodes: of each round.
    """
    paths = RunPaths(root)
    for directory in (*paths.directories(), paths.account):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    began = time.time() - rounds * ROUND_S
    identity = {"format": 1, "run_id": paths.name, "name": "large", "user": "me"}
    Path(paths.identity).write_text(json.dumps(identity))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "large"}}))
    submissions.record(paths, Submission(0, "token", "7", time.strftime("%F %T", time.localtime(began - 60))))
    store, entries = SharedDirStore(paths.root), list(_entries(rounds, records, nodes))
    for number, (at, entry) in enumerate(entries, start=1):
        data = journal.encode(entry, at=began + at, by="node0", role=Role.AGENT)
        if not store.append("journal", number, data):
            raise GroupError(f"record {number} of {paths.root} is there already")
    for node in ("node0", "node1"):
        (Path(paths.account) / f"{node}.log").write_bytes(b"".join(_facts(node, entries, began)))
    _write_logs(paths, rounds, nodes)
    return paths


def _entries(rounds: int, records: int, nodes: int) -> Iterator[tuple[float, Entry]]:
    """Yield records with their times [s since the begin]; each twentieth round ends a start of the job."""
    names = tuple(f"node{number}" for number in range(nodes))
    members = tuple(Member(f"{name}.1", name, RANKS) for name in names)
    failure = {"rank": 17, "node": "node2", "exitcode": 1, "message": "RuntimeError: NCCL error"}
    per_start = max(rounds // STARTS, 1)
    notes = max(-(-(records - 2 * rounds) // rounds), 0)
    epoch = Epoch(0, 0, 0, 0)
    for number in range(1, rounds + 1):
        at = (number - 1) * ROUND_S
        if number % per_start == 1 or per_start == 1:
            epoch = Epoch(0, 0, (number - 1) // per_start, 0)
            yield at, EpochStarted(epoch, "7", names)
        saved = MarkedCheckpoint(number * 100, None)
        yield at + 10, RoundFormed(number, epoch, members, "node0", 29400, saved)
        for note in range(notes):
            yield at + 20 + note, Note(epoch, "a note")
        if number % per_start == 0:
            yield at + ROUND_S - 60, Requeued(epoch, Cause.PREEMPTION)
        else:
            cause = Cause.CRASH if number % 2 else Cause.NODE_LOSS
            yield at + ROUND_S - 5, RoundEnded(number, cause, ("node2",), failure if number % 2 else None)
    yield rounds * ROUND_S, RunEnded(Decision.HELD, 1, "no restarts are left", failure)


def _facts(node: str, entries: Iterable[tuple[float, Entry]], began: float) -> Iterator[bytes]:
    """Yield the lines of a node about all rounds, each after the record of its round."""
    for known, (_, entry) in enumerate(entries, start=1):
        if not isinstance(entry, RoundFormed):
            continue
        at = (entry.number - 1) * ROUND_S
        for part in range(12):
            step = entry.number * 100 + 10 * part
            seconds = at + 30 + part * 45
            doing = Doing.STARTED if part == 0 else Doing.STEP
            told = None if part == 0 else step
            yield encode_fact(
                WorkFact(entry.number, doing, began + seconds, seconds, f"{node}.1", known, told)
            )


def _write_logs(paths: RunPaths, rounds: int, nodes: int) -> None:
    """Write the logs of the newest round: large files with holes, whose last lines are text."""
    ranks = nodes * RANKS
    for rank in range(ranks):
        directory = paths.worker_logs(rounds, rank)
        os.makedirs(directory, mode=0o700)
        with open(os.path.join(directory, "stdout.log"), "wb") as file:
            file.seek(LOG_BYTES // ranks - len(_LINES) - 1)
            file.write(b"\n" + _LINES)
    for node in range(nodes):
        Path(paths.agent_log(f"node{node}")).write_text("[12:00:00] round 1: starting\n" * 100)
