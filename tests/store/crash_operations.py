"""The operations on a run directory that are killed and made to fail at every system call."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints
from hpc_elastic.record.checkpoints import MarkName
from hpc_elastic.record.journal import Cause, Epoch, EpochStarted, Member, RoundEnded, RoundFormed
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.request import SubmitRequest, plan, read_template
from hpc_elastic.slurm.submit.run_dir import read_request
from hpc_elastic.store.shared_dir import SEGMENT_RECORDS, SharedDirStore, record_name, segment_name
from hpc_elastic.worker.progress import AtomicWrite

OLD, NEW, HALF, SAME = "old", "new", "half", "same"
VALUE_A, VALUE_B, VALUE_C = (letter * 10_000 for letter in (b"a", b"b", b"c"))
EPOCH = Epoch(0, 0, 0, 0)


class Operation(NamedTuple):
    """Something one process does to a run directory while others read it.

    Attributes:
        name: for people.
        prepare: makes what was there before.
        act: what is interrupted.
        look: says as a reader sees it: `OLD`, `NEW`, or what is wrong. `HALF` is allowed of a kill: an
            interrupted submission, refused with what to do. `SAME`: the operation changes nothing.
        follow: what the next writer does; asserts that it works and is seen.
        is_sure: an error means that it did not happen, unless only its durability is in doubt.
    """

    name: str
    prepare: Callable[[str], object]
    act: Callable[[str], object]
    look: Callable[[str], str]
    follow: Callable[[str], None]
    is_sure: bool = True


def make_run(root: str) -> None:
    """Make an empty run directory."""
    for directory in RunPaths(root).directories():
        os.makedirs(directory, mode=0o700)
    os.mkdir(os.path.join(RunPaths(root).journal, segment_name(1)), mode=0o700)


def one_of(seen: object, old: object, new: object) -> str:
    """Return which of two values was seen, or the value itself."""
    return OLD if seen == old else NEW if seen == new else f"neither: {seen!r:.200}"


# Numbered records


def _appends(name: str, number: int) -> Operation:
    def fill(root: str) -> None:
        for earlier in range(1, number):
            path = Path(root, "journal", segment_name(earlier), record_name(earlier))
            path.write_bytes(VALUE_A)

    def seen(root: str) -> list[tuple[int, bytes]]:
        return SharedDirStore(root).read_after("journal", number - 1)

    def follow(root: str) -> None:
        store = SharedDirStore(root)
        free = number + len(seen(root))
        assert store.append("journal", free, VALUE_C)
        assert (free, VALUE_C) == seen(root)[-1]

    return Operation(
        name,
        fill,
        lambda root: SharedDirStore(root).append("journal", number, VALUE_B),
        lambda root: one_of(seen(root), [], [(number, VALUE_B)]),
        follow,
    )


# Files and marks


def _value(root: str) -> bytes | None:
    return SharedDirStore(root).get("nodes", "a.json")


def _put(root: str, value: bytes) -> None:
    SharedDirStore(root).put("nodes", "a.json", value)


def _put_again(root: str) -> None:
    _put(root, VALUE_C)
    assert VALUE_C == _value(root)


def _create(root: str) -> bool:
    return SharedDirStore(root).create("fresh", "a", VALUE_B)


def _created(root: str) -> bytes | None:
    return SharedDirStore(root).get("fresh", "a")


def _create_again(root: str) -> None:
    is_there = _created(root) is not None
    assert SharedDirStore(root).create("fresh", "a", VALUE_C) is not is_there
    assert (VALUE_B if is_there else VALUE_C) == _created(root)


def _marks(root: str) -> list[str]:
    return SharedDirStore(root).list("members")


def _mark(root: str, name: str, instead_of: str | None = None) -> None:
    SharedDirStore(root).mark("members", name, instead_of=instead_of)


def _mark_again(root: str) -> None:
    for name in _marks(root):
        _mark(root, "n+2", name)
    _mark(root, "n+2")
    assert ["n+2"] == _marks(root)


def _unmark_again(root: str) -> None:
    SharedDirStore(root).unmark("members", "n+0")
    assert [] == _marks(root)


# The journal as agents write it


def _formed(root: str) -> None:
    log = open_log(RunPaths(root), "n1")
    log.commit(lambda _state: EpochStarted(EPOCH, "", ()))
    members = (Member("n1.1", "n1", 1),)
    log.commit(lambda _state: RoundFormed(1, EPOCH, members, "n1", 29500, None))


def _report_crash(root: str) -> None:
    ended = RoundEnded(1, Cause.CRASH, ("n1",), {"message": "oops"})
    open_log(RunPaths(root), "n1").commit(lambda _state: ended)


def _crash_seen(root: str) -> str:
    state = read_state(RunPaths(root))
    return one_of((state.crashes, state.running is None), (0, False), (1, True))


def _report_again(root: str) -> None:
    _report_crash(root)
    assert NEW == _crash_seen(root)
    assert 1 == read_state(RunPaths(root)).crashes


# Checkpoints


def _checkpoint(root: str, step: int) -> None:
    checkpoints.write_mark(RunPaths(root), MarkName(step, 1, 0, 1), f"/c/{step}", 1)


def _newest_step(root: str) -> int | None:
    found = checkpoints.latest(RunPaths(root))
    return found.step if found else None


def _checkpoint_again(root: str) -> None:
    _checkpoint(root, 20)
    _checkpoint(root, 30)
    assert _newest_step(root) == 30


def _save(root: str, value: bytes, round_number: int = 1) -> None:
    with AtomicWrite(os.path.join(root, "checkpoints", "last.pt"), round_number) as file:
        file.write(value)


def _saved(root: str) -> bytes:
    return Path(root, "checkpoints", "last.pt").read_bytes()


def _save_again(root: str) -> None:
    _save(root, VALUE_C, 2)
    assert VALUE_C == _saved(root)
    assert ["last.pt"] == os.listdir(os.path.join(root, "checkpoints"))


# Submissions


def _announce(root: str) -> None:
    submissions.announce(RunPaths(root), 0, "token", now_s=0)


def _record(root: str) -> None:
    submissions.record(RunPaths(root), Submission(0, "token", "4711", "now"))


def _submitted(root: str) -> list[tuple[int, str, str]]:
    return [(each.number, each.token, each.job_id) for each in submissions.read_submissions(RunPaths(root))]


def _record_again(root: str) -> None:
    submissions.record(RunPaths(root), Submission(0, "token", "4711", "later"))
    assert [(0, "token", "4711")] == _submitted(root)


def _withdraw(root: str) -> None:
    submissions.withdraw(RunPaths(root), 0)


def _withdraw_and_announce(root: str) -> None:
    _withdraw(root)
    _announce(root)
    assert [(0, "token", "")] == _submitted(root)


# A new run directory


@lru_cache
def _request(root: str) -> SubmitRequest:
    spec = JobSpec(command="true", name="train", run_dir=os.path.join(root, "job"))
    return plan(spec, read_template(), now_s=0)


def _create_run(root: str) -> None:
    run_dir.create(_request(root), now_s=0)


def _run_seen(root: str) -> str:
    paths = _request(root).paths
    if not os.path.lexists(paths.identity):
        run_dir.check(paths.root, allow_local=True)
        return OLD
    if not os.path.lexists(paths.script):
        return HALF
    script = read_request(paths).script
    return NEW if script == Path(paths.script).read_text() else "another script"


def _create_run_again(root: str) -> None:
    """Take up what was begun: who began it is gone, or the error tells what to do."""
    if _run_seen(root) == NEW:
        return
    try:
        _create_run(root)
    except RunDirError as refused:
        identity = _request(root).paths.identity
        if f"rm {identity}, and submit again" not in refused.fix:
            raise
        os.unlink(identity)
        _create_run(root)
    assert NEW == _run_seen(root)


# Readers


def _three(root: str) -> None:
    for number in (1, 2, 3):
        SharedDirStore(root).append("journal", number, VALUE_A)
    _put(root, VALUE_A)


def _read_three(root: str) -> None:
    got = SharedDirStore(root).read_after("journal", 0), _value(root), SharedDirStore(root).list("nodes")
    assert got == ([(number, VALUE_A) for number in (1, 2, 3)], VALUE_A, ["a.json"])


def _nothing(root: str) -> None:
    assert os.path.isdir(root)


def operations() -> list[Operation]:
    """Return all operations."""
    return [
        _appends("append", 2),
        _appends("append, new segment", SEGMENT_RECORDS),
        Operation("put", lambda root: _put(root, VALUE_A), lambda root: _put(root, VALUE_B),
                  lambda root: one_of(_value(root), VALUE_A, VALUE_B), _put_again),
        Operation("create, new directory", _nothing, _create,
                  lambda root: one_of(_created(root), None, VALUE_B), _create_again),
        Operation("mark", _nothing, lambda root: _mark(root, "n+0"),
                  lambda root: one_of(_marks(root), [], ["n+0"]), _mark_again),
        Operation("mark instead of", lambda root: _mark(root, "n+0"), lambda root: _mark(root, "n+1", "n+0"),
                  lambda root: one_of(_marks(root), ["n+0"], ["n+1"]), _mark_again),
        Operation("unmark", lambda root: _mark(root, "n+0"),
                  lambda root: SharedDirStore(root).unmark("members", "n+0"),
                  lambda root: one_of(_marks(root), ["n+0"], []), _unmark_again),
        Operation("report of a crash", _formed, _report_crash, _crash_seen, _report_again),
        Operation("checkpoint_saved", lambda root: _checkpoint(root, 10), lambda root: _checkpoint(root, 20),
                  lambda root: one_of(_newest_step(root), 10, 20), _checkpoint_again),
        Operation("atomic_write", lambda root: _save(root, VALUE_A), lambda root: _save(root, VALUE_B),
                  lambda root: one_of(_saved(root), VALUE_A, VALUE_B), _save_again),
        Operation("run directory created", _request, _create_run, _run_seen, _create_run_again),
        Operation("submission announced", _nothing, _announce,
                  lambda root: one_of(_submitted(root), [], [(0, "token", "")]), _withdraw_and_announce),
        Operation("submission recorded", _announce, _record,
                  lambda root: one_of(_submitted(root), [(0, "token", "")], [(0, "token", "4711")]),
                  _record_again),
        Operation("submission withdrawn", _announce, _withdraw,
                  lambda root: one_of(_submitted(root), [(0, "token", "")], []), _withdraw_and_announce),
        Operation("reading", _three, _read_three, lambda _root: SAME, _read_three),
    ]  # fmt: skip
