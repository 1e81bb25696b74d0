"""One run of the measure `ettr`: the faults that strike it, and what its workers have noted."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench_lib.ettr.ways import LIMIT_MIN, NODES, Job, Way
from bench_lib.group import GroupError
from hpc_elastic.testing.fake_slurm import FakeSlurm

KINDS = ("worker-kill", "node-crash", "preemption", "time-limit", "hang")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "gone")  # in Slurm's words
BEGIN_LIMIT_S = 180.0
LOOK_S = 0.1
HELD_S = 5.0  # how long the other job that has preempted keeps its nodes
AWAY_S = 20.0  # how long a node that has crashed is away: twice as long as Slurm takes to notice it
WARNED_S = 20.0  # how long before its time limit a job is warned: as long as one that is preempted


class Note(NamedTuple):
    """What a worker has noted: when (monotonic [s]), what, its rank and the step."""

    at: float
    what: str
    rank: int
    step: int
    node: str
    pid: int


class Strike(NamedTuple):
    """A fault that has struck: when (monotonic [s]), and its kind."""

    at: float
    kind: str


class Mend(NamedTuple):
    """What ends a fault.

    Attributes:
        at: when it is due (monotonic) [s].
        kind: of the fault.
        name: of the node, or of the job.
        restarts: of the job when the fault struck.
    """

    at: float
    kind: str
    name: str
    restarts: int = 0


class Course(NamedTuple):
    """What has happened in a run.

    Attributes:
        began: its first step (monotonic) [s].
        ended: when no more was counted.
        strikes: faults that have struck.
        notes: of all workers, in order.
        job_state: of its job at the end, in Slurm's words.
    """

    began: float
    ended: float
    strikes: list[Strike]
    notes: list[Note]
    job_state: str


def plan(seed: int, every_s: float, length_s: float) -> list[tuple[float, str]]:
    """Return the faults of a run: times after its first step [s], and kinds; the last interval has none."""
    draw = random.Random(seed)  # noqa: S311 - repeatable, not secret
    kinds: list[str] = []
    found = []
    for number in range(1, int(length_s // every_s)):
        if not kinds:
            kinds = draw.sample(KINDS, len(KINDS))
        found.append((number * every_s + draw.uniform(-0.1, 0.1) * every_s, kinds.pop()))
    return found


def run(way: Way, job: Job, faults: list[tuple[float, str]], length_s: float) -> Course:
    """Submit a job, strike it, and return what has happened.

    Raises:
        GroupError: it was refused, or did not begin.
    """
    notes_in = job.place / "notes"
    job_id = way.submit(job)
    began = _first_step(job.slurm, notes_in, job_id)
    strikes: list[Strike] = []
    mends: list[Mend] = []
    left = list(faults)
    state = ""
    while (passed := time.monotonic() - began) < length_s and state not in OVER:
        if left and passed >= left[0][0]:
            _strike(job.slurm, job_id, left.pop(0)[1], read_notes(notes_in), strikes, mends)
        _mend(job.slurm, mends)
        time.sleep(LOOK_S)
        state = job.slurm.job(job_id).get("JobState", "gone")
    job.slurm.cancel_all()
    return Course(began, began + length_s, strikes, read_notes(notes_in), state)


def _first_step(slurm: FakeSlurm, notes_in: Path, job_id: str) -> float:
    until = time.monotonic() + BEGIN_LIMIT_S
    while time.monotonic() < until:
        found = [note.at for note in read_notes(notes_in) if note.what == "step"]
        if found:
            return min(found)
        time.sleep(LOOK_S)
    raise GroupError(f"no step in {BEGIN_LIMIT_S:g} s: {slurm.job(job_id)}")


def _strike(
    slurm: FakeSlurm, job_id: str, kind: str, notes: list[Note], strikes: list[Strike], mends: list[Mend]
) -> None:
    """Strike if there is anything to strike: the worker or the node of the highest rank, or the job."""
    workers = [note for note in notes if note.what == "step" and _is_alive(note.pid)]
    if not workers:
        return
    victim = max(workers, key=lambda note: (note.rank, note.at))
    at = time.monotonic()
    if kind == "worker-kill":
        os.kill(victim.pid, signal.SIGKILL)
    elif kind == "hang":
        os.kill(victim.pid, signal.SIGSTOP)
    elif kind == "node-crash":
        slurm.crash(victim.node)
        mends.append(Mend(at + AWAY_S, kind, victim.node))
    elif kind == "time-limit":
        mends.append(Mend(at, kind, job_id, int(slurm.job(job_id)["Restarts"])))
        slurm.command("scontrol", "update", f"jobid={job_id}", f"endtime=now+{WARNED_S:.0f}")
    else:
        mends.append(Mend(at + HELD_S, kind, slurm.submit_high(NODES + 1)))
    strikes.append(Strike(at, kind))


def _mend(slurm: FakeSlurm, mends: list[Mend]) -> None:
    """End the faults that are due: bring a node back, end the job that has preempted, give a job its time."""
    for due in [mend for mend in mends if mend.at <= time.monotonic()]:
        shown = {} if due.kind == "node-crash" else slurm.job(due.name)
        if due.kind == "node-crash":
            slurm.boot(due.name)
            slurm.command("scontrol", "update", f"nodename={due.name}", "state=resume")
        elif due.kind == "preemption" and shown.get("JobState") != "PENDING":
            slurm.command("scancel", due.name)
        elif due.kind == "time-limit" and int(shown.get("Restarts", "0")) > due.restarts:
            slurm.command("scontrol", "update", f"jobid={due.name}", f"timelimit={LIMIT_MIN}")
        else:
            continue
        mends.remove(due)


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZXT"
        )
    return False


def read_notes(folder: Path) -> list[Note]:
    """Return what all workers have noted, in order."""
    found = []
    for path in folder.iterdir():
        node, pid, _ = path.name.split("+")
        for line in path.read_text(encoding="ascii").splitlines():
            at, what, rank, step = line.split()
            found.append(Note(float(at), what, int(rank), int(step), node, int(pid)))
    return sorted(found)
