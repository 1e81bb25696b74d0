"""The checkpoints of an object in files, and the one that it goes on from: the newest that is whole."""

from __future__ import annotations

import logging
import os

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.saving import Saves
from hpc_elastic.frameworks.torch.checkpoint_files import damage
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.trees import WHERE
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints as marks
from hpc_elastic.record.checkpoint_files import read_facts

logger = logging.getLogger(__name__)


class CompleteCheckpoint(NamedTuple):
    """A complete checkpoint.

    Attributes:
        step: steps completed in it.
        path: its directory.
        world_size: number of ranks that have saved it.
        saved_at: when it was complete, by the clock of rank 0 [s since the epoch].
    """

    step: int
    path: str
    world_size: int
    saved_at: float


class FoundCheckpoints:
    """Finds the checkpoints of an object.

    Args:
        ranks: the process groups.
        saves: of the object.
    """

    def __init__(self, ranks: RankGroups, saves: Saves) -> None:
        self._ranks, self._saves = ranks, saves
        self._damaged = list[str]()  # the paths of those whose files are not as they were written

    def all(self) -> list[CompleteCheckpoint]:
        """Return all complete checkpoints, the newest first."""
        found = map(_complete, self._saves.complete())
        return [saved for saved in found if saved is not None]

    def to_resume(self) -> CompleteCheckpoint | None:
        """Return the checkpoint to resume from, of the round if there is one; all ranks call it.

        Raises:
            InputError: it was marked without a path, or there is none of this kind, run and object there.
        """
        found = self._ranks.told(self._path() if self._ranks.rank == 0 else None)
        return None if found is None else self._saved_at(found)

    def undamaged(self, saved: CompleteCheckpoint | None) -> CompleteCheckpoint | None:
        """Return a checkpoint, or the newest one before it whose files are as they were written.

        All ranks call it; each reads some of the files.

        Raises:
            InputError: there is none.
        """
        while saved is not None:
            facts = read_facts(saved.path)
            mine = () if facts is None else facts.files[self._ranks.rank :: self._ranks.size]
            problem = next(filter(None, self._ranks.all_told(damage(saved.path, mine))), "")
            if not problem:
                break
            if self._ranks.rank == 0:
                told = "the checkpoint of step %d is damaged: %s; an older one counts"
                logger.warning(told, saved.step, problem)
            self._damaged.append(saved.path)
            saved = self.to_resume()
        return saved

    def _path(self) -> str | None:
        if worker.run_dir() is None:
            there = [saved.path for saved in self.all() if saved.path not in self._damaged]
            return next(iter([*there, *self._damaged]), None)
        marked = worker.latest_checkpoint(self._saves.name)
        if marked is not None and marked.path is None:
            raise InputError(
                f"the checkpoint of step {marked.step} was marked without a path",
                where=WHERE,
                fix="let Checkpoints alone save, or load that one yourself",
            )
        return None if marked is None else self._whole_one(marked)

    def _whole_one(self, marked: marks.Checkpoint) -> str | None:
        """Return the path of a checkpoint, or of the newest one before it that is whole if it is not."""
        root = worker.run_dir()
        if root is None or self._is_ours(marked.path):
            return marked.path
        for other in marks.marked(RunPaths(root), self._saves.name):
            if other.step <= marked.step and self._is_ours(other.path):
                told = "the checkpoint %s is not whole; the training goes on from the one of step %d"
                logger.warning(told, marked.path, other.step)
                return other.path
        return marked.path

    def _is_ours(self, path: str | None) -> bool:
        """Tell whether there is a whole checkpoint of this run and object at a path."""
        facts = None if path is None or path in self._damaged else read_facts(path)
        mine = self._saves.run, self._saves.name
        return facts is not None and (not facts.run or (facts.run, facts.name) == mine)

    def _saved_at(self, path: str) -> CompleteCheckpoint:
        """Return the checkpoint at a path.

        Raises:
            InputError: there is none of this kind, run and object.
        """
        saved, is_damaged = _complete(path), path in self._damaged
        if saved is not None and not is_damaged and (worker.run_dir() is None or self._is_ours(path)):
            return saved
        problem = "is gone"
        if is_damaged:
            problem = "is damaged, and there is no older one"
        elif os.path.exists(path):
            problem = (
                "was not saved by Checkpoints" if saved is None else "was saved by another run or object"
            )
        raise InputError(
            f"the checkpoint to resume from {problem}: {path}",
            where=WHERE,
            fix="load it yourself, give its place back, or begin a new run",
        )


def _complete(path: str) -> CompleteCheckpoint | None:
    """Return the checkpoint at a path; None if it is not complete, or of another kind."""
    facts = read_facts(path)
    return None if facts is None else CompleteCheckpoint(facts.step, path, facts.world_size, facts.saved_at)
