"""All checkpoints that a run has marked, and the way back to one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum

from hpc_elastic.errors import DamagedError, InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.checkpoint_files import read_facts
from hpc_elastic.record.checkpoints import (
    MarkName,
    WayBack,
    complete_marks,
    encode_name,
    encode_way_back,
    is_absent,
    object_names,
    parse_name,
    parse_way_back,
    write_way_back,
)
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import Count, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.paths import RunPaths

_SHOWN = 10  # steps in an error


class SavedState(Enum):
    """The use of a checkpoint."""

    NEXT = "next"  # the run goes on from it
    WHOLE = "whole"
    LEFT = "left"  # whole, and the run has gone back behind it
    HALF = "half"  # not all ranks have saved their part
    GONE = "gone"  # marked, and not there any more


_UNUSABLE = (SavedState.HALF, SavedState.GONE)


class ListedCheckpoint(NamedTuple):
    """A checkpoint that ranks have marked.

    Attributes:
        step: steps completed in it.
        name: of the object that has saved it.
        state: its use.
        path: where it is; None: it was marked without a path.
        at: time of the newest mark, by the clock of the file server [s since the epoch].
        size: of its files [bytes]; None: not known.
        world_size: ranks that have saved it; None: not known.
        ranks: that have marked it.
        shards: ranks that mark it when it is complete.
        source: that has saved it: ``Checkpoints``, or ``checkpoint_saved`` for a program or Trainer.
        round: that has saved it.
        branch: of this round.
    """

    step: int
    name: str
    state: SavedState
    path: str | None
    at: float | None
    size: int | None
    world_size: int | None
    ranks: int
    shards: int
    source: str
    round: int
    branch: int


class _Content(NamedTuple):
    """The content of a mark."""

    path: str | None = None
    world_size: Count | None = None


def saved_checkpoints(paths: RunPaths) -> list[ListedCheckpoint]:
    """Return all checkpoints that ranks have marked, by object, the newest first.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    names = files.list_names(paths.checkpoints)
    found: dict[tuple[str, tuple[int, int, int], int], list[MarkName]] = {}
    for mark in filter(None, map(parse_name, names)):
        found.setdefault((mark.name, mark.order, mark.shards), []).append(mark)
    rows: list[ListedCheckpoint] = []
    for of in object_names(names):
        line = {mark.order for mark in complete_marks(names, of)}
        groups = [marks for (name, _, _), marks in found.items() if name == of]
        groups.sort(key=lambda marks: marks[0].order, reverse=True)
        rows += _with_next([_seen(paths, marks, line) for marks in groups])
    return rows


def _with_next(rows: Sequence[ListedCheckpoint]) -> list[ListedCheckpoint]:
    """Return the checkpoints of one object, with that from which the run goes on."""
    best = next((row for row in rows if row.state is SavedState.WHOLE), None)
    return [row._replace(state=SavedState.NEXT) if row is best else row for row in rows]


def _seen(paths: RunPaths, marks: Sequence[MarkName], line: set[tuple[int, int, int]]) -> ListedCheckpoint:
    mark, content, at = min(marks), _Content(), None
    with suppress(OSError, DamagedError):
        place = os.path.join(paths.checkpoints, encode_name(mark))
        content = read(_Content, read_plain(place))
        at = max(os.stat(os.path.join(paths.checkpoints, encode_name(one))).st_mtime for one in marks)
    facts = None if content.path is None else read_facts(content.path)
    ranks = len({one.rank for one in marks})
    state = SavedState.WHOLE if mark.order in line else SavedState.LEFT
    if ranks < mark.shards:
        state = SavedState.HALF
    elif content.path is not None and is_absent(content.path):
        state = SavedState.GONE
    return ListedCheckpoint(
        mark.step,
        mark.name,
        state,
        content.path,
        at,
        None if content.path is None else size_of(content.path),
        facts.world_size if facts is not None else content.world_size,
        ranks,
        mark.shards,
        "checkpoint_saved" if facts is None else "Checkpoints",
        mark.round,
        mark.branch,
    )


def size_of(path: str) -> int | None:
    """Return the size of a file, or of all files below a directory [bytes]; None: it cannot be read."""
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        places = (os.path.join(above, name) for above, _, names in os.walk(path) for name in names)
        return sum(os.lstat(place).st_size for place in places)
    except OSError:
        return None


def ways_back(paths: RunPaths, step: int, rounds: int) -> list[WayBack]:
    """Return the records by which the next round goes on from a step, one for each object of the run.

    Args:
        paths: the run.
        step: that is wanted.
        rounds: how many the run has had.

    Raises:
        InputError: an object has no whole checkpoint of the step.
        OSError: the directory of marks exists and cannot be listed.
    """
    rows = saved_checkpoints(paths)
    fit = [row for row in rows if row.state not in _UNUSABLE]
    found = []
    for name in sorted({row.name for row in rows}) or [""]:
        there = [row for row in fit if (row.name, row.step) == (name, step)]
        if not there:
            raise _no_step(paths, step, name, [row.step for row in fit if row.name == name])
        best = min(there, key=lambda row: row.state is SavedState.LEFT)
        found.append(WayBack(rounds + 1, 0, step, best.round, best.branch, name))
    return found


def go_back(paths: RunPaths, backs: Iterable[WayBack]) -> None:
    """Have the next round go on from a step, in place of any that was asked for before it.

    Raises:
        OSError: it cannot be recorded.
    """
    for back in backs:
        for text in files.list_names(paths.checkpoints):
            known = parse_way_back(text)
            if known is not None and (known.place, known.name) == (back.place, back.name) and known != back:
                os.unlink(os.path.join(paths.checkpoints, encode_way_back(known)))
        write_way_back(paths, back)


def users_ways_back(paths: RunPaths) -> dict[int, int]:
    """Return the steps that the user has gone back to, by the number of the first round from there."""
    try:
        backs = list(filter(None, map(parse_way_back, files.list_names(paths.checkpoints))))
    except OSError:
        return {}
    return {back.round: back.step for back in backs if not back.branch}  # a branch is of the workers


def stay(paths: RunPaths, backs: Iterable[WayBack]) -> None:
    """Undo `go_back`, where no start was queued that goes on from there.

    Raises:
        OSError: a record cannot be removed.
    """
    for back in backs:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(paths.checkpoints, encode_way_back(back)))


def whole_steps(paths: RunPaths) -> list[int]:
    """Return the steps that a run can go back to, the newest first.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    rows = saved_checkpoints(paths)
    return sorted({row.step for row in rows if row.state not in _UNUSABLE}, reverse=True)


def _no_step(paths: RunPaths, step: int, name: str, steps: Sequence[int]) -> InputError:
    whose = f" of {name}" if name else ""
    there = sorted(set(steps), reverse=True)
    shown = ", ".join(map(str, there[:_SHOWN])) + (", ..." if len(there) > _SHOWN else "")
    return InputError(
        f"there is no whole checkpoint{whose} of step {step}",
        where="--from-step",
        fix=f"there are those of steps {shown}: hpc-elastic checkpoints {for_shell(paths.root)}"
        if there
        else "leave it out: the run begins at step 0",
    )
