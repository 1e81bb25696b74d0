"""Marks that say which checkpoints are durable.

A mark is ``checkpoints/<step>.<round>.<rank>.<shards>.json``, published whole or not at all. All
that is needed to choose a checkpoint is in the names, so choosing costs one directory listing;
the content adds the path. A checkpoint is complete when as many ranks of one round as it has
shards have left their mark.

A directory that `hpc_elastic.frameworks.torch.Checkpoints` has saved also holds its facts, in a file that is
written last.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from hpc_elastic.errors import DamagedError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store import files
from hpc_elastic.store.files import make_directory
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.typed_json import Count, Seconds, read, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpc_elastic.paths import RunPaths

FORMAT = 1
SAMPLES = 128  # marks that are read to learn how long a save takes
KEPT = 32  # complete checkpoints whose marks stay; the checkpoints themselves are never touched
FACTS = "checkpoint.json"  # in the directory of a checkpoint
_SUFFIX = ".json"


class Checkpoint(NamedTuple):
    """A durable checkpoint.

    Attributes:
        step: steps completed in it.
        path: the path given to `checkpoint_saved`, made absolute; None if none was.
    """

    step: Count
    path: str | None = None


class MarkName(NamedTuple):
    """The facts in the name of a mark."""

    step: int
    round: int
    rank: int
    shards: int


class CheckpointFacts(NamedTuple):
    """The content of the file that completes the directory of a checkpoint.

    Attributes:
        step: steps completed in it.
        world_size: number of ranks that have saved it.
        saved_at: by the clock of rank 0 [s since the epoch].
        blocked_s: for how long the save has held up the loop of rank 0 [s].
        took_s: until all parts were on disk [s].
        every_s: the interval of saves then [s]; None: they are counted in steps.
        recovered: the rounds of the run whose fault has lost next to nothing, as ranks had kept their state.
        format: version of the file.
    """

    step: Count
    world_size: Count
    saved_at: Seconds
    blocked_s: Seconds
    took_s: Seconds
    every_s: Seconds | None = None
    recovered: tuple[Count, ...] = ()
    format: int = FORMAT


class _Mark(NamedTuple):
    """The content of a mark."""

    format: int
    step: Count
    path: str | None


def encode_name(mark: MarkName) -> str:
    """Return the file name of a mark."""
    return f"{mark.step:012d}.{mark.round}.{mark.rank}.{mark.shards}{_SUFFIX}"


def parse_name(name: str) -> MarkName | None:
    """Return the facts in a file name, or None if it is no mark's name."""
    if not name.endswith(_SUFFIX):
        return None
    fields = name[: -len(_SUFFIX)].split(".")
    numbers = [number for number in map(whole_number, fields) if number is not None]
    if not len(numbers) == len(fields) == len(MarkName._fields):
        return None
    mark = MarkName(*numbers)
    return mark if mark.shards > 0 else None


def encode_mark(mark: MarkName, path: str | None, world_size: int, took_s: float | None = None) -> bytes:
    """Return the content of a mark.

    Args:
        mark: the content of its name.
        path: where the checkpoint is.
        world_size: number of all workers.
        took_s: how long it took to save this rank's part [s], if that is known.
    """
    record: dict[str, object] = {"format": FORMAT, **mark._asdict(), "world_size": world_size, "path": path}
    if took_s is not None:
        record["took_s"] = round(took_s, 3)
    return json.dumps(record).encode() + b"\n"


def parse_mark(data: bytes) -> Checkpoint | None:
    """Return the checkpoint a mark stands for, or None if the content is damaged or too new."""
    try:
        mark = read(_Mark, data)
    except DamagedError:
        return None
    return Checkpoint(mark.step, mark.path) if mark.format == FORMAT else None


def to_env(checkpoint: Checkpoint | None) -> str:
    """Return the value of HPC_ELASTIC_CHECKPOINT; empty for no checkpoint."""
    return "" if checkpoint is None else json.dumps(checkpoint._asdict())


def from_env(text: str) -> Checkpoint | None:
    """Return the checkpoint in HPC_ELASTIC_CHECKPOINT, or None if it is empty or damaged."""
    try:
        return read(Checkpoint, text.encode("utf-8", "surrogateescape")) if text else None
    except DamagedError:
        return None


def complete_marks(names: Iterable[str]) -> Iterator[MarkName]:
    """Yield one mark of each complete checkpoint, best first: highest step, then newest round."""
    ranks: dict[tuple[int, int, int], set[int]] = {}
    for name in names:
        mark = parse_name(name)
        if mark is not None:
            ranks.setdefault((mark.step, mark.round, mark.shards), set()).add(mark.rank)
    for (step, round_number, shards), present in sorted(ranks.items(), reverse=True):
        if len(present) >= shards:
            yield MarkName(step, round_number, min(present), shards)


def latest(paths: RunPaths) -> Checkpoint | None:
    """Return the newest complete checkpoint of a run: one listing, as a rule one file read.

    Foreign names, leftovers and damaged marks are passed over.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    for mark in complete_marks(files.list_names(paths.checkpoints)):
        checkpoint = _read(os.path.join(paths.checkpoints, encode_name(mark)))
        if checkpoint is not None and checkpoint.step == mark.step:
            return checkpoint
    return None


def newest_step(paths: RunPaths, none: int) -> int:
    """Return the step of the newest complete checkpoint.

    Args:
        paths: the run.
        none: the result without any; a directory that cannot be listed now counts as empty.
    """
    try:
        newest = latest(paths)
    except OSError:
        newest = None
    return none if newest is None else newest.step


def _read(path: str) -> Checkpoint | None:
    try:
        return parse_mark(read_plain(path))
    except OSError:
        return None


def write_mark(
    paths: RunPaths, mark: MarkName, path: str | None, world_size: int, took_s: float | None = None
) -> None:
    """Make a mark durable; a mark that is already there stays as it is.

    Args:
        paths: the run.
        mark: the content of its name.
        path: where the checkpoint is.
        world_size: number of all workers.
        took_s: how long it took to save this rank's part [s], if that is known.

    Raises:
        OSError: the mark could not be written.
    """
    make_directory(paths.checkpoints)
    content = encode_mark(mark, path, world_size, took_s)
    files.publish_new(os.path.join(paths.checkpoints, encode_name(mark)), content)


def superseded(names: Iterable[str]) -> list[str]:
    """Return the marks that no start of the run can need: all older than the newest `KEPT` complete ones.

    Nothing is among them as long as fewer checkpoints are complete, however many are half marked.

    Args:
        names: the listing of the directory of marks.
    """
    marks = {name: mark for name in names if (mark := parse_name(name)) is not None}
    steps = sorted({mark.step for mark in complete_marks(marks)}, reverse=True)
    return [name for name, mark in marks.items() if mark.step < steps[KEPT - 1]] if len(steps) >= KEPT else []


def remove_superseded(paths: RunPaths, rank: int | None = None, most: int | None = None) -> None:
    """Remove marks that no start of the run can need; marks that cannot be removed stay.

    Args:
        paths: the run.
        rank: whose marks; None: everybody's.
        most: marks removed at most; None: all.
    """
    try:
        old = superseded(files.list_names(paths.checkpoints))
    except OSError:
        return
    mine = [name for name in old if (mark := parse_name(name)) is not None and rank in (None, mark.rank)]
    for name in mine[:most]:
        with suppress(OSError):
            os.unlink(os.path.join(paths.checkpoints, name))


def is_half_saved(names: Iterable[str], step: int) -> bool:
    """Tell whether some ranks have marked a checkpoint of a step, or a later one, and others have not yet.

    Args:
        names: the listing of the directory of marks.
        step: the least step.
    """
    marks = [mark for name in names if (mark := parse_name(name)) is not None and mark.step >= step]
    whole = {(mark.step, mark.round) for mark in complete_marks(map(encode_name, marks))}
    return bool(marks) and not whole


def save_times(paths: RunPaths) -> list[float]:
    """Return how long the newest saves have taken [s], each as long as its slowest rank.

    Reads one file per mark, so it is nothing for the agent's loop.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    names = files.list_names(paths.checkpoints)
    taken: dict[tuple[int, int], float] = {}
    marks = sorted(filter(None, map(parse_name, names)), reverse=True)[:SAMPLES]
    for mark in marks:
        took_s = _took(os.path.join(paths.checkpoints, encode_name(mark)))
        if took_s is not None:
            taken[mark.step, mark.round] = max(took_s, taken.get((mark.step, mark.round), 0.0))
    return list(taken.values())


class _Taken(NamedTuple):
    """How long a save took, as a mark says it."""

    took_s: Seconds | None = None


def _took(path: str) -> float | None:
    try:
        return read(_Taken, read_plain(path)).took_s
    except (OSError, DamagedError):
        return None


def write_facts(path: str, facts: CheckpointFacts) -> None:
    """Complete the directory of a checkpoint.

    Raises:
        OSError: the file could not be written.
    """
    files.publish_new(os.path.join(path, FACTS), json.dumps(facts._asdict()).encode() + b"\n")


def read_facts(path: str) -> CheckpointFacts | None:
    """Return the facts in the directory of a checkpoint; None if it is not complete, or of another kind."""
    try:
        # A copy of a checkpoint may be a group's, as the data in it; without the facts it would not count.
        facts = read(CheckpointFacts, read_plain(os.path.join(path, FACTS), alone=False))
    except (OSError, DamagedError):
        return None
    return facts if facts.format == FORMAT else None
