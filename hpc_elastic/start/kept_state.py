"""The states of workers that an agent leaves in its node's memory for the next start of the run.

That is asked for by a setting, since nothing of ours may run on the node when they are to go. They are kept
where another start is to follow, and no checkpoint in files is as new. A record beside them names their run
and round. The agent of the same run and node takes them over, unless the run has formed another round since:
then they are stale. An agent or an epilog that finds them after their time removes them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from hpc_elastic.errors import DamagedError, HpcElasticError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import Record, RoundFormed
from hpc_elastic.record.memory_files import HEAD_BYTES, OWN, step_in
from hpc_elastic.record.run_log import read_records
from hpc_elastic.settings.values import LONGEST_S
from hpc_elastic.start.scratch import (
    MEMORY,
    folder_of,
    is_expired,
    is_kept,
    kept_name,
    own_directory,
    own_folder,
)
from hpc_elastic.store.plain_file import open_plain, read_plain
from hpc_elastic.typed_json import Count, Seconds, checksum_of, read

RECORD: Final = "kept.json"
FORMAT: Final = 2
NO_STEP: Final = -1  # of a run without a checkpoint in files
_OF_OTHERS: Final = 0o077  # the bits of a mode that are not the owner's


class KeptFile(NamedTuple):
    """A file with a state, or a part of one."""

    name: str
    size: Count  # [bytes]


class KeptState(NamedTuple):
    """The record beside the files.

    Attributes:
        run_id: of the run.
        run_dir: of the run.
        node: the name of the agent.
        round: the newest one of the run.
        formed: checksum of the record of this round, which a run that was begun anew does not have.
        world_size: ranks of this round.
        step: of the newest state in the files; without one that of the values of single ranks.
        files: the files.
        at: the end of the agent, by the clock of this node [s since the epoch].
        until: when the files may be removed, by the same clock.
        format: version of the record.
        checksum: of the record without this number; the files have their own.
    """

    run_id: str
    run_dir: str
    node: str
    round: Count
    formed: Count
    world_size: Count
    step: Count
    files: tuple[KeptFile, ...]
    at: Seconds
    until: Seconds
    format: int = FORMAT
    checksum: Count = 0

    @property
    def sealed(self) -> KeptState:
        """The record with its checksum."""
        return self._replace(checksum=checksum_of(self._replace(checksum=0)))

    @property
    def size(self) -> int:
        """The size of all files [bytes]."""
        return sum(file.size for file in self.files)

    @property
    def text(self) -> str:
        """The content for people: beside the values of single ranks the state may be on another node."""
        has_state = any(OWN.fullmatch(file.name) is None for file in self.files)
        return (
            f"{'the state' if has_state else 'values of single ranks, without a state,'} of step {self.step}"
        )


class Mine(NamedTuple):
    """The agent that leaves or takes over states."""

    run_id: str
    paths: RunPaths
    node: str


def keep(scratch: str, mine: Mine, now: float, seconds: float) -> KeptState | None:
    """Let the states of this agent stay for the next start; return their record, None if there are none.

    The directory gets another name, and only these files stay in it.

    Args:
        scratch: the agent's directory in the node's memory.
        mine: the agent.
        now: by the clock of this node [s since the epoch].
        seconds: for how long the states stay; infinite: as long as any time may be.

    Raises:
        OSError: there is no room for the record, or the directory is gone; then nothing stays.
        HpcElasticError: the journal cannot be read.
    """
    if not own_folder(scratch):
        return None
    newest = _newest_round(read_records(mine.paths))
    found = _newer_files(scratch, newest_step(mine.paths, NO_STEP))
    if newest is None or not found:
        return None
    made = KeptState(
        mine.run_id,
        mine.paths.root,
        mine.node,
        newest.number,
        checksum_of(newest),
        newest.workers,
        max([step for name, step in found.items() if OWN.fullmatch(name) is None] or found.values()),
        tuple(KeptFile(name, os.stat(os.path.join(scratch, name)).st_size) for name in sorted(found)),
        now,
        now + min(seconds, LONGEST_S),
    ).sealed
    descriptor = os.open(os.path.join(scratch, RECORD), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(json.dumps(made._asdict()).encode())
    for name in {*os.listdir(scratch)} - {RECORD, *found}:
        os.unlink(os.path.join(scratch, name))
    os.rename(scratch, os.path.join(own_folder(scratch), kept_name(made.at, made.until)))
    return made


def take_over(scratch: str, mine: Mine, now: float) -> KeptState | None:
    """Move the states that the last start has kept for this agent to its directory; remove them if stale.

    Args:
        scratch: the agent's directory in the node's memory.
        mine: the agent.
        now: by the clock of this node [s since the epoch].

    Returns:
        The record of the states that were moved; None: none were.
    """
    taken = None
    with suppress(OSError), own_directory(own_folder(scratch)) as folder:
        for name in sorted(os.listdir(folder)):
            if is_kept(name) and not is_expired(name, now):
                with suppress(OSError):
                    taken = _taken(folder, name, mine, scratch, is_first=taken is None) or taken
    return taken


def remove_of(paths: RunPaths, place: str = MEMORY) -> None:
    """Remove the states that agents of a run have kept on this node, as the run is over.

    Args:
        paths: the run.
        place: in which agents have their directories.
    """
    path = folder_of(place)
    with suppress(OSError), own_directory(path) as folder:
        for name in filter(is_kept, os.listdir(folder)):
            with suppress(OSError), own_directory(name, folder) as kept:
                found = _read(kept)
                if found is None or found.run_dir == paths.root:
                    fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(kept, name, folder)
    with suppress(OSError):
        os.rmdir(path)


def _newest_round(records: Iterable[Record]) -> RoundFormed | None:
    found = [one.entry for one in records if isinstance(one.entry, RoundFormed)]
    return found[-1] if found else None


def _newer_files(scratch: str, step: int) -> dict[str, int]:
    """Return the steps of files with states that are newer than a checkpoint, by the names of the files."""
    found = {}
    for name in os.listdir(scratch):
        with suppress(OSError):
            descriptor = open_plain(os.path.join(scratch, name))
            try:
                there = step_in(name, os.pread(descriptor, HEAD_BYTES, 0))
            finally:
                os.close(descriptor)
            if there is not None and there > step:
                found[name] = there
    return found


def _taken(folder: int, name: str, mine: Mine, scratch: str, *, is_first: bool) -> KeptState | None:
    """Take over one directory; return its record if its files were moved.

    One of another agent is not locked for a moment: that agent would take it for one that is taken.
    """
    with own_directory(name, folder) as kept:
        found = _read(kept)
        owner = None if found is None else (found.run_id, found.run_dir, found.node)
        if found is not None and owner != (mine.run_id, mine.paths.root, mine.node):
            return None
        fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another process removes it
        fits = found is not None and is_first and _is_newest(found, mine.paths) and _is_whole(found, kept)
        if found is not None and fits:
            for file in found.files:
                os.rename(file.name, os.path.join(scratch, file.name), src_dir_fd=kept)
        _remove(kept, name, folder)
        return found if fits else None


def _read(kept: int) -> KeptState | None:
    """Return the record in a directory of this user's; None: it is damaged, or open to others."""
    if os.fstat(kept).st_mode & _OF_OTHERS:
        return None
    try:
        found = read(KeptState, read_plain(f"/proc/self/fd/{kept}/{RECORD}"))
    except (OSError, DamagedError):
        return None
    return found if found.format == FORMAT and found == found.sealed else None


def _is_newest(found: KeptState, paths: RunPaths) -> bool:
    """Tell whether the run has formed no other round since, and saved nothing as new in files."""
    try:
        newest = _newest_round(read_records(paths))
    except HpcElasticError:
        return False
    is_same = newest is not None and (newest.number, checksum_of(newest)) == (found.round, found.formed)
    return is_same and newest_step(paths, NO_STEP) < found.step


def _is_whole(found: KeptState, kept: int) -> bool:
    """Tell whether all files are there as they were, plain ones of this user's."""
    for file in found.files:
        if os.path.basename(file.name) != file.name:
            return False
        try:
            descriptor = open_plain(f"/proc/self/fd/{kept}/{file.name}")
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size != file.size:
                return False
        finally:
            os.close(descriptor)
    return True


def _remove(kept: int, name: str, folder: int) -> None:
    for file in os.listdir(kept):
        os.unlink(file, dir_fd=kept)
    os.rmdir(name, dir_fd=folder)
