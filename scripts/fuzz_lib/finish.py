"""Targets: what becomes of a job whose run directory, or whose answers from Slurm, cannot be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from fuzz_lib.commands import FastClock, holds, place
from fuzz_lib.damage import Damage, damages, lay_out
from fuzz_lib.samples import E0, E1, E2, STORIES, files_of
from fuzz_lib.slurm_here import JOB, SlurmHere, world_with
from fuzz_lib.strategies import odd_texts
from fuzz_lib.target import Target, expect
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from hpc_elastic.testing.fake_slurm.cluster.model import State

_NAMES = (
    "toy",
    "x JobState=CANCELLED",
    "x JobState=RUNNING",
    "x Restarts=99 Requeue=0",
    "scaling NumNodes=4",
    "x\tReason=a",
)
_REASONS = (
    "None",
    "Resources",
    "JobHeldUser",
    "launch failed requeued held",
    "TimeLimit",
    "NodeDown",
    "x JobState=RUNNING",
)
_CODES = (0, 1, 75, 76, 77, 79, 80, 83, 137, 143)
_jobs = st.tuples(
    st.sampled_from([state.value for state in State if state not in (State.REQUEUED, State.RESIZING)]),
    st.sampled_from(_NAMES) | odd_texts,
    st.sampled_from(("hpc_elastic:ab", "hpc_elastic:ab JobState=RUNNING")) | odd_texts,
    st.sampled_from(_REASONS),
    st.integers(0, 2),
    st.booleans(),
)
_starts = st.tuples(
    st.integers(0, 2), st.sampled_from(_CODES), st.booleans(), st.sampled_from(("", "n[1-2]", "n[1-"))
)
_mangling = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.integers(0, 40),
        st.sampled_from(
            (
                " JobState=CANCELLED",
                " Restarts=" + "9" * 400,
                "\n",
                "",
                "JobId=7 ",
                " NumNodes=-1",
                "\x1b[31m",
                "=",
            )
        )
        | odd_texts,
    ),
    max_size=3,
)
_cancelled = st.tuples(
    st.sampled_from(("CANCELLED", "COMPLETING")),
    st.sampled_from(_NAMES) | odd_texts,
    st.sampled_from(("hpc_elastic:ab", "hpc_elastic:ab JobState=RUNNING")) | odd_texts,
    st.just("None"),
    st.integers(0, 2),
    st.booleans(),
)
Case = tuple[str, Sequence[Damage], Any, Any, Sequence[tuple[int, int, str]]]


def _mangled(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    for at, length, piece in edits:
        where = at % (len(text) + 1)
        text = text[:where] + piece + text[where + length :]
    return text


def _finish(case: Case) -> None:
    story, done, job, start, edits = case
    state, name, comment, reason, restarts, held = job
    safe = [_one_line(text) for text in (name, comment)]  # Slurm itself lets no line end into them
    world = world_with(
        State(state), name=safe[0], comment=safe[1], reason=reason, restarts=restarts, held=held
    )
    slurm = SlurmHere(world, lambda text: _mangled(text, edits))
    is_cancelled = state in ("CANCELLED", "COMPLETING") and reason == "None" and not edits
    with place() as root, slurm.in_place():
        lay_out(root / "toy-1", files_of(story), done)
        _check(_ended(root / "toy-1", start), slurm, root / "toy-1", is_cancelled=is_cancelled)


def _one_line(text: str) -> str:
    return " ".join(text.replace("\0", "").split("\n")).encode("utf-8", "replace").decode()


def _ended(root: Any, start: tuple[int, int, bool, str]) -> Ended | None:
    epoch, code, is_submitted, node_list = start
    at = (E0, E1, E2)[epoch]
    begun = Start(
        RunPaths(root),
        at,
        str(JOB),
        2,
        local=False,
        srun_exit_code=code,
        is_submitted=is_submitted,
        node_list=node_list,
    )
    said: list[str] = []
    try:
        ended = Finish(begun, RequeueBudgets(), Slurm(), FastClock(), said.append).run()
    except (HpcElasticError, OSError):
        return None  # told in one line; the script then ends as failed
    expect(bool(said), "nothing was said")
    return ended


def _check(ended: Ended | None, slurm: SlurmHere, root: Any, *, is_cancelled: bool) -> None:
    expect(not (is_cancelled and slurm.brought_back), "a cancelled job was brought back")
    if ended is None:
        return
    expect(0 <= ended.code <= 255, f"exit code {ended.code}")  # noqa: PLR2004 - as a process has it
    ending = ended.state.ending
    is_done = ending is not None and ending.decision is Decision.DONE
    expect(
        not is_done or holds(root / "journal", b'"done"'), "a run is done that nobody has recorded as done"
    )
    expect(ended.code != 0 or ending is not None, "success without an ending")


_CASES = st.tuples(st.sampled_from(STORIES), damages, _jobs | _cancelled, _starts, st.just(()))
_HOSTILE = st.tuples(st.sampled_from(STORIES), st.just(()) | damages, _jobs, _starts, _mangling)
TARGETS: tuple[Target, ...] = (
    Target("finish", _CASES, _finish, 40),
    Target("finish-hostile", _HOSTILE, _finish, 40),
)
