"""One run from its submission to the verdict on it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chaos_lib import promises
from chaos_lib.course import OVER, Course
from chaos_lib.disk import Disk
from chaos_lib.faults import FAULTS, Scene
from chaos_lib.recovery import Effect, effects
from chaos_lib.training import USER, Shape, SubmitError, Training, undisturbed
from hpc_elastic.account.account import account_of
from hpc_elastic.clock import clock_text
from hpc_elastic.record.journal import Decision
from hpc_elastic.report.timeline import timeline
from tests.real_slurm.cluster import Cluster

GONE_S = 90.0
MIN_FAULTS, MAX_FAULTS = 2, 6
SELDOM = 0.15


class Verdict(NamedTuple):
    """What became of a run.

    Attributes:
        broken: the promises that were not kept, in words; empty if all were.
    """

    name: str
    shape: Shape
    took_s: float
    decision: str
    effects: list[Effect]
    counts: Mapping[str, int]
    broken: list[str]
    story: Sequence[str] = ()  # what happened, as `hpc-elastic timeline` tells it


class Ground(NamedTuple):
    """Where runs take place, and how."""

    cluster: Cluster
    disk: Disk
    kinds: Sequence[str]
    example: str
    mode: str
    flags: tuple[str, ...]  # of `submit`, the same for all runs
    evidence: Path  # where what is kept of broken runs lies
    expected: dict[tuple[str, int, str], dict[str, Any]]  # results that are known already
    say: Callable[[str], None]


def draw_shape(draw: random.Random, example: str, mode: str) -> Shape:
    """Draw what is run next."""
    flags: tuple[str, ...] = ("--mode", "array") if mode == "array" else ()
    if draw.random() < SELDOM:
        flags += ("--time", "2m", "--checkpoint-lead", "20")
    max_restarts = draw.choice([0, 1, 2]) if draw.random() < SELDOM else 50
    steps = draw.choice([600, 900, 1200])
    if example != "plain":  # their results are those of a number of ranks
        return Shape(example, draw.choice(["2", "3"]), steps // 2, 0.05, 20, max_restarts, flags)
    nodes = draw.choice(["2:4", "2:4", "3", "4", "1:4", "2:3"])
    return Shape(example, nodes, steps, 0.05, 20, max_restarts, flags)


def run_one(ground: Ground, number: int, seed: int, stop_at: float) -> Verdict:
    """Run one training under faults.

    Args:
        ground: where.
        number: of this run.
        seed: of all runs; with the number it gives this run's faults.
        stop_at: no fault strikes later [s since the epoch].
    """
    draw = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable, not secret
    drawn = draw_shape(draw, ground.example, ground.mode)
    shape = drawn._replace(flags=(*drawn.flags, *ground.flags))
    name = f"run-{number:03d}"
    began = time.time()
    ground.say(f"{name} {clock_text(began)} {shape.text()}")
    try:
        training = Training.submit(ground.cluster, ground.disk.place / name, shape)
    except SubmitError as error:
        return Verdict(name, shape, 0.0, "refused", [], {}, [f"submit refused: {error}"])
    course = Course(
        Scene(ground.cluster, ground.disk, training, draw),
        ground.kinds,
        draw.randint(MIN_FAULTS, MAX_FAULTS),
        stop_at,
        ground.say,
    )
    broken = course.run()
    broken += _after(ground, training, course)
    records = training.records()
    state = training.state()
    verdict = Verdict(
        name,
        shape,
        time.time() - began,
        state.ending.decision.value if state.ending else "no ending",
        effects(course.strikes, records),
        {**promises.counts(records), "by_hand": course.by_hand, "nodes": course.resumed},
        broken,
        [f"{moment.at:.3f} {moment.text}" for moment in timeline(records)],
    )
    if broken:
        _keep(ground, training, broken)
    ground.cluster.restore()
    shutil.rmtree(training.directory, ignore_errors=True)
    return verdict


def _after(ground: Ground, training: Training, course: Course) -> list[str]:
    """Wait until all is quiet and check every promise."""
    if training.state().ending is None:
        return []
    broken = _wait_gone(ground, training)
    records, state = training.records(), training.state()
    costly = sum(FAULTS[strike.fault].costs_a_restart for strike in course.strikes)
    most = costly * 10 if any(strike.fault == "disk-full" for strike in course.strikes) else costly
    broken += promises.ending(state, training.shape, may_crash=most)
    broken += promises.result(state, training.result(), _expected(ground, training.shape))
    broken += promises.journal(records)
    broken += promises.steps(records, training.marks(), course.stalls)
    history = training.history()
    broken += promises.account(account_of(history), history)
    broken += promises.lock(training.paths.lock)
    broken += promises.logs(training.directory)
    # the tasks of an array have words of their own, and one that was lost need not come back
    return broken if ground.mode == "array" else broken + promises.job(state, training.job())


def _wait_gone(ground: Ground, training: Training) -> list[str]:
    """Wait until Slurm and the nodes are rid of the job."""

    def is_over() -> bool:
        if ground.mode == "array":
            return not ground.cluster.as_root("squeue", "--noheader", f"--user={USER}").strip()
        fields = training.job()
        return fields.get("JobState") in OVER or fields.get("Reason") == "JobHeldUser"

    broken = []
    held = (Decision.HELD,)
    deadline = time.time() + GONE_S
    while not is_over() and time.time() < deadline:
        time.sleep(0.3)
    if not is_over():
        broken.append(f"the job is not over: {training.job()}")
    while (left := training.processes()) and time.time() < deadline:
        time.sleep(0.3)
    broken += [f"a process is left on {process.node}: {process.command[:200]}" for process in left]
    state = training.state()
    if state.ending is not None and state.ending.decision in held:
        ground.cluster.as_root("scancel", training.job_id)
    return broken


def _expected(ground: Ground, shape: Shape) -> dict[str, Any]:
    key = (shape.example, shape.steps, shape.nodes if shape.example != "plain" else "")
    if key not in ground.expected:
        ground.expected[key] = undisturbed(shape)
    return ground.expected[key]


def _keep(ground: Ground, training: Training, broken: Sequence[str]) -> None:
    """Keep everything that tells how a promise was broken."""
    place = ground.evidence / training.directory.name
    shutil.copytree(training.directory, place / "run", symlinks=True, dirs_exist_ok=True)
    shutil.copytree(ground.cluster.directory / "log", place / "log", symlinks=True, dirs_exist_ok=True)
    (place / "broken.txt").write_text("\n".join([*broken, "", ground.cluster.story(), str(training.job())]))
    ground.say(f"  kept in {place}")
