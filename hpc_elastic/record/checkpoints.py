"""Marks that say which checkpoints are durable, and which of them a run goes on from.

A mark is ``checkpoints/<step>.<round>.<rank>.<shards>[.<branch>[.<name>]].json``, published whole or not at
all. All that is needed to choose a checkpoint is in the names, so choosing costs one directory listing; the
content adds the path. A checkpoint is complete when as many ranks of one round as it has shards have left
their mark. The name is that of the object that has saved it, as a program may have several.

Rounds follow one another, and a process may go back to an earlier step within a round, which begins another
branch. A round or branch that has gone back leaves the newer checkpoints of those before it: they stay, and
nothing goes on from them. Where that does not follow from a mark,
``checkpoints/from.<round>.<branch>.<step>.<of round>.<of branch>[.<name>].json`` says so.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress

from hpc_elastic.errors import DamagedError, InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store import files
from hpc_elastic.store.files import make_directory
from hpc_elastic.store.plain_file import read_plain
from hpc_elastic.typed_json import Count, Seconds, read, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpc_elastic.paths import RunPaths

FORMAT = 1
SAMPLES = 128  # marks that are read to learn how long a save takes
KEPT = 32  # complete checkpoints whose marks stay; the checkpoints themselves are never touched
_SUFFIX = ".json"
_FROM = "from."  # begins the name of the record of a way back
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # of an object; an empty one is the default


class Checkpoint(NamedTuple):
    """A durable checkpoint.

    Attributes:
        step: steps completed in it.
        path: the path given to `checkpoint_saved`, made absolute; None if none was.
    """

    step: Count
    path: str | None = None


class MarkName(NamedTuple):
    """The facts in the name of a mark.

    Attributes:
        step: steps completed in the checkpoint.
        round: that has saved it.
        rank: that has left the mark.
        shards: how many ranks leave one.
        branch: how often the process had gone back to an earlier step in its round.
        name: of the object that has saved it.
    """

    step: int
    round: int
    rank: int
    shards: int
    branch: int = 0
    name: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """The round and its branch, which follow one another."""
        return self.round, self.branch

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key of the checkpoint: the newest has the greatest."""
        return self.round, self.branch, self.step


class WayBack(NamedTuple):
    """A round or branch that goes on from an earlier step than the newest.

    Attributes:
        round: the first one that goes on from there.
        branch: of this round.
        step: that it goes on from.
        of_round: whose checkpoints the step is one of, or an earlier one.
        of_branch: of that round.
        name: of the object.
    """

    round: int
    branch: int
    step: int
    of_round: int
    of_branch: int
    name: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """The round and its branch."""
        return self.round, self.branch


class _Mark(NamedTuple):
    """The content of a mark."""

    format: int
    step: Count
    path: str | None


def check_name(name: object) -> str:
    """Return the name of an object.

    Raises:
        InputError: it cannot be one.
    """
    if name == "" or (isinstance(name, str) and _NAME.fullmatch(name)):
        return str(name)
    raise InputError(
        f"name is {name!r}",
        where="hpc_elastic",
        fix="give up to 64 letters, digits, hyphens and underscores, such as generator, or leave it out",
    )


def encode_name(mark: MarkName) -> str:
    """Return the file name of a mark."""
    more = ""
    if mark.branch or mark.name:
        more = f".{mark.branch}.{mark.name}" if mark.name else f".{mark.branch}"
    return f"{mark.step:012d}.{mark.round}.{mark.rank}.{mark.shards}{more}{_SUFFIX}"


def parse_name(name: str) -> MarkName | None:
    """Return the facts in a file name, or None if it is no mark's name."""
    found = _fields(name, least=4, most=5)
    if found is None:
        return None
    (step, round_number, rank, shards, *branch), of = found
    return MarkName(step, round_number, rank, shards, sum(branch), of) if shards > 0 else None


def encode_way_back(back: WayBack) -> str:
    """Return the file name of the record of a way back."""
    numbers = ".".join(map(str, back[:5]))
    return f"{_FROM}{numbers}{f'.{back.name}' if back.name else ''}{_SUFFIX}"


def parse_way_back(name: str) -> WayBack | None:
    """Return the facts in a file name, or None if it is of another kind."""
    found = _fields(name.removeprefix(_FROM), least=5, most=5) if name.startswith(_FROM) else None
    if found is None:
        return None
    (round_number, branch, step, of_round, of_branch), of = found
    return WayBack(round_number, branch, step, of_round, of_branch, of)


def _fields(name: str, least: int, most: int) -> tuple[list[int], str] | None:
    """Return the numbers in a file name, and the name of an object behind `most` of them."""
    if not name.endswith(_SUFFIX):
        return None
    fields = name[: -len(_SUFFIX)].split(".")
    of = fields.pop() if len(fields) == most + 1 else ""
    numbers = [number for number in map(whole_number, fields) if number is not None]
    is_one = len(numbers) == len(fields) and least <= len(fields) <= most and (not of or _NAME.fullmatch(of))
    return (numbers, of) if is_one else None


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


def object_names(names: Iterable[str]) -> list[str]:
    """Return the names of the objects that have left marks, in order; the default is empty."""
    return sorted({mark.name for name in names if (mark := parse_name(name)) is not None})


def complete_marks(names: Iterable[str], name: str = "") -> Iterator[MarkName]:
    """Yield one mark of each complete checkpoint that the run may go on from, the best first.

    Those of the newest round and branch come first, by their step, then those before them, as far as it has
    gone on from them.

    Args:
        names: the listing of the directory of marks.
        name: of the object.
    """
    names = list(names)
    backs = [back for each in names if (back := parse_way_back(each)) is not None and back.name == name]
    yield from _line(_whole_marks(names, name), backs)


def left_marks(names: Iterable[str], name: str = "") -> list[MarkName]:
    """Return one mark of each complete checkpoint that the run has gone back behind, the newest first."""
    names = list(names)
    line = {mark.order for mark in complete_marks(names, name)}
    return [mark for mark in _whole_marks(names, name) if mark.order not in line]


def _whole_marks(names: Iterable[str], name: str) -> list[MarkName]:
    """Return one mark of each complete checkpoint of an object, the newest first."""
    ranks: dict[tuple[tuple[int, int, int], int], list[MarkName]] = {}
    for mark in map(parse_name, names):
        if mark is not None and mark.name == name:
            ranks.setdefault((mark.order, mark.shards), []).append(mark)
    there = sorted(ranks.items(), reverse=True)
    return [min(marks) for (_, shards), marks in there if len({mark.rank for mark in marks}) >= shards]


def _line(whole: Sequence[MarkName], backs: Sequence[WayBack]) -> Iterator[MarkName]:
    """Yield the checkpoints that lead to the newest one.

    A round whose first checkpoint is of a lower step than those before it has gone back behind them.
    """
    most, top = float("inf"), (float("inf"), float("inf"))
    for place in sorted({*(mark.place for mark in whole), *(back.place for back in backs)}, reverse=True):
        if place > top:
            continue
        here = [mark for mark in whole if mark.place == place and mark.step <= most]
        yield from here
        most = min([most, *(mark.step for mark in here)])
        for back in backs:
            if back.place == place:
                most, top = min(most, back.step), min(top, (back.of_round, back.of_branch))


class Found(NamedTuple):
    """The checkpoint to go on from.

    Attributes:
        checkpoint: the newest complete one that is there; None without one.
        gone: newer ones that are not there any more.
    """

    checkpoint: Checkpoint | None
    gone: tuple[Checkpoint, ...] = ()

    @property
    def text(self) -> str:
        """The lines for people about those that are gone; empty: none is."""
        if self.checkpoint is None or not self.gone:
            return ""
        lost = ", ".join(f"{one.path} (step {one.step})" for one in self.gone)
        return (
            f"not there any more: {lost}; the run goes on from the checkpoint of step {self.checkpoint.step}"
        )


def find(paths: RunPaths, name: str = "", most: int | None = None) -> Found:
    """Return the checkpoint of an object that the run goes on from.

    Foreign names, leftovers and damaged marks are passed over. If none of all checkpoints is there any more,
    their file system may be away: then the newest is returned, so that no training begins anew by mistake.

    Args:
        paths: the run.
        name: of the object.
        most: its greatest step; None: any.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    gone: list[Checkpoint] = []
    for checkpoint in marked(paths, name):
        if most is not None and checkpoint.step > most:
            continue
        if checkpoint.path is None or not is_absent(checkpoint.path):
            return Found(checkpoint, tuple(gone))
        gone.append(checkpoint)
    return Found(gone[0]) if gone else Found(None)


def marked(paths: RunPaths, name: str = "") -> Iterator[Checkpoint]:
    """Yield the checkpoints of an object that the run may go on from, the best first, there or not.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    for mark in complete_marks(files.list_names(paths.checkpoints), name):
        checkpoint = _read(os.path.join(paths.checkpoints, encode_name(mark)))
        if checkpoint is not None and checkpoint.step == mark.step:
            yield checkpoint


def latest(paths: RunPaths, name: str = "") -> Checkpoint | None:
    """Return the checkpoint of an object that the run goes on from: one listing, as a rule one file read.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    return find(paths, name).checkpoint


def newest(paths: RunPaths) -> Checkpoint | None:
    """Return the checkpoint of the highest step that an object of the run goes on from.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    found = [latest(paths, name) for name in object_names(files.list_names(paths.checkpoints))]
    return max((one for one in found if one is not None), key=lambda one: one.step, default=None)


def newest_step(paths: RunPaths, none: int) -> int:
    """Return the step of the newest complete checkpoint of any object.

    Args:
        paths: the run.
        none: the result without any; a directory that cannot be listed now counts as empty.
    """
    try:
        found = newest(paths)
    except OSError:
        found = None
    return none if found is None else found.step


def is_absent(path: str) -> bool:
    """Tell whether there is certainly nothing at a path."""
    if os.path.exists(path):
        return False
    try:
        os.listdir(os.path.dirname(path))  # has a network file system drop its cache of the name
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # it may be there
    return False


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


def remove_mark(paths: RunPaths, mark: MarkName) -> None:
    """Take a mark back, as the save has failed.

    Raises:
        OSError: it is there, and cannot be removed.
    """
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(paths.checkpoints, encode_name(mark)))


def write_way_back(paths: RunPaths, back: WayBack) -> None:
    """Record that a run goes on from an earlier step; done twice it is one record.

    Raises:
        OSError: it could not be written.
    """
    make_directory(paths.checkpoints)
    content = json.dumps({"format": FORMAT, **back._asdict()}).encode() + b"\n"
    files.publish_new(os.path.join(paths.checkpoints, encode_way_back(back)), content)


def went_back_since(paths: RunPaths, round_number: int) -> bool:
    """Tell whether the run has gone back to an earlier step in a round or after it.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    backs = filter(None, map(parse_way_back, files.list_names(paths.checkpoints)))
    return any(back.place > (round_number, 0) for back in backs)


def superseded(names: Iterable[str]) -> list[str]:
    """Return the marks that no start of the run can need: all older than the newest `KEPT` complete ones.

    Nothing is among them as long as fewer checkpoints are complete, however many are half marked, and none
    that the run has gone back behind, as its user may ask for one.

    Args:
        names: the listing of the directory of marks.
    """
    names = list(names)
    found: list[str] = []
    for of in object_names(names):
        oldest = _oldest_kept(complete_marks(names, of))
        if oldest is not None:
            left = {mark.order for mark in left_marks(names, of)}
            marks = {
                each: mark for each in names if (mark := parse_name(each)) is not None and mark.name == of
            }
            found += [each for each, mark in marks.items() if mark.order < oldest and mark.order not in left]
    return found


def _oldest_kept(line: Iterable[MarkName]) -> tuple[int, int, int] | None:
    """Return the order of the oldest checkpoint whose mark stays; None: all stay."""
    steps: set[int] = set()
    for mark in line:
        steps.add(mark.step)
        if len(steps) == KEPT:
            return mark.order
    return None


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
    """Tell whether some ranks of the newest round have marked a checkpoint, and others have not yet.

    Args:
        names: the listing of the directory of marks.
        step: the least step; a later one that is whole is as good.
    """
    found = [mark for name in names if (mark := parse_name(name)) is not None]
    newest = max((mark.place for mark in found), default=None)
    marks = [encode_name(mark) for mark in found if mark.place == newest and mark.step >= step]
    return any(not _whole_marks(marks, name) for name in object_names(marks))


def save_times(paths: RunPaths) -> list[float]:
    """Return how long the newest saves have taken [s], each as long as its slowest rank.

    Reads one file per mark, so it is nothing for the agent's loop.

    Raises:
        OSError: the directory of marks exists and cannot be listed.
    """
    taken: dict[tuple[object, ...], float] = {}
    found = (mark for name in files.list_names(paths.checkpoints) if (mark := parse_name(name)) is not None)
    for mark in sorted(found, key=lambda mark: mark.order, reverse=True)[:SAMPLES]:
        took_s = _took(os.path.join(paths.checkpoints, encode_name(mark)))
        if took_s is not None:
            key = (mark.name, *mark.order)
            taken[key] = max(took_s, taken.get(key, 0.0))
    return list(taken.values())


class _Taken(NamedTuple):
    """How long a save took, as a mark says it."""

    took_s: Seconds | None = None


def _took(path: str) -> float | None:
    try:
        return read(_Taken, read_plain(path)).took_s
    except (OSError, DamagedError):
        return None
