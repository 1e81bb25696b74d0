"""Files beside checkpoints and their marks: the facts of one, the id of a run's, and the last failed save.

The facts of a checkpoint are written last, and complete its directory.
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
from hpc_elastic.typed_json import Count, Seconds, checksum_of, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpc_elastic.paths import RunPaths

FORMAT = 1
FACTS = "checkpoint.json"  # in the directory of a checkpoint
DAMAGED = "damaged.json"  # the same, once a start has found that others of its files are
_SUFFIX = ".json"
_FAILED = "failed"  # begins the name of the record of a failed save
_OWNER = "owner.json"


class SavedFile(NamedTuple):
    """A file of a checkpoint as it was written.

    Attributes:
        name: in the directory of the checkpoint.
        size: of it [bytes].
        checksum: CRC-32 of its content.
    """

    name: str
    size: Count
    checksum: Count


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
        run: the id of the run's checkpoints, as `owner_id`; empty: without a run, or by an old version.
        name: of the object that has saved it.
        format: version of the file.
        files: all others in the directory; empty: by an old version.
        checksum: CRC-32 of the facts without this number; 0: by an old version.
    """

    step: Count
    world_size: Count
    saved_at: Seconds
    blocked_s: Seconds
    took_s: Seconds
    every_s: Seconds | None = None
    recovered: tuple[Count, ...] = ()
    run: str = ""
    name: str = ""
    format: int = FORMAT
    files: tuple[SavedFile, ...] = ()
    checksum: Count = 0

    @property
    def sealed(self) -> CheckpointFacts:
        """The facts with their checksum."""
        return self._replace(checksum=checksum_of(self._replace(checksum=0)))


class FailedSave(NamedTuple):
    """The last save of an object, which has failed.

    Attributes:
        step: that was to be saved.
        round: of the workers.
        at: by the clock of rank 0 [s since the epoch].
        reason: the error, for people.
    """

    step: Count
    round: Count
    at: Seconds
    reason: str


def note_failed(paths: RunPaths, failed: FailedSave | None, name: str = "") -> None:
    """Record that the last save of an object has failed; None: it has not.

    Raises:
        OSError: it could not be written.
    """
    path = os.path.join(paths.checkpoints, _failed_name(name))
    if failed is not None:
        make_directory(paths.checkpoints)
        files.replace(path, json.dumps(failed._asdict()).encode() + b"\n")
        return
    with suppress(FileNotFoundError):
        os.unlink(path)


def _failed_name(of: str) -> str:
    return f"{_FAILED}{f'.{of}' if of else ''}{_SUFFIX}"


def failed_saves(paths: RunPaths) -> dict[str, FailedSave]:
    """Return the objects whose last save has failed, by their names; none if that cannot be read now."""
    found = {}
    with suppress(OSError):
        for name in files.list_names(paths.checkpoints):
            of = name.removeprefix(_FAILED).removesuffix(_SUFFIX).removeprefix(".")
            if name == _failed_name(of):
                with suppress(OSError, DamagedError):
                    found[of] = read(FailedSave, read_plain(os.path.join(paths.checkpoints, name)))
    return found


def failed_save_texts(failed: Mapping[str, FailedSave]) -> list[str]:
    """Return a sentence about each object whose last save has failed."""
    return [
        f"the last save{f' of {name}' if name else ''}, of step {one.step}, has failed: {one.reason}"
        for name, one in sorted(failed.items())
    ]


class _Owner(NamedTuple):
    """The content of the file with the id of a run's checkpoints."""

    id: str


def owner_id(paths: RunPaths) -> str:
    """Return the id of a run's checkpoints, which no other run has; all processes get the same.

    Raises:
        OSError: it could be neither read nor made.
        DamagedError: it is damaged.
    """
    path = os.path.join(paths.checkpoints, _OWNER)
    with suppress(FileNotFoundError):
        return read(_Owner, read_plain(path)).id
    make_directory(paths.checkpoints)
    files.publish_new(path, json.dumps(_Owner(os.urandom(4).hex())._asdict()).encode() + b"\n")
    return read(_Owner, read_plain(path)).id


def write_facts(path: str, facts: CheckpointFacts) -> None:
    """Complete the directory of a checkpoint.

    Raises:
        OSError: the file could not be written.
        DamagedError: a value is none of its type, so that no reader would take the file.
    """
    files.publish_new(os.path.join(path, FACTS), json.dumps(facts.sealed._asdict()).encode() + b"\n")


def note_damaged(path: str) -> None:
    """Note at a checkpoint that a start has found it damaged, as far as that is possible."""
    with suppress(OSError):
        files.replace(os.path.join(path, DAMAGED), b"{}\n")


def is_noted_damaged(path: str) -> bool:
    """Tell whether a start has found a checkpoint damaged: then it does not count among those to keep."""
    return os.path.exists(os.path.join(path, DAMAGED))


def read_facts(path: str) -> CheckpointFacts | None:
    """Return the facts in the directory of a checkpoint; None if it is not complete, or of another kind."""
    try:
        # A copy of a checkpoint may be a group's, as the data in it; without the facts it would not count.
        facts = read(CheckpointFacts, read_plain(os.path.join(path, FACTS), alone=False))
    except (OSError, DamagedError):
        return None
    is_whole = facts == facts.sealed or not (facts.files or facts.checksum)
    return facts if facts.format == FORMAT and is_whole else None
