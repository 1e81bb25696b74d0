"""A training loop that saves, stops and continues, for any way to save its state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.own_files import own_path
from hpc_elastic.frameworks.saving import KEEP, Saves, checked_total, same_name

_completed: dict[tuple[str, str], WeakSet[Any]] = {}  # the objects that complete loops save by


class ElasticLoop:
    """Goes through the steps of a run, from the newest checkpoint to the end or until a stop is requested.

    All ranks must make one, and go through the same steps::

        elastic = ElasticLoop(save=accelerator.save_state, load=accelerator.load_state, save_every=500)
        for step in elastic.steps(10_000):
            train(step)

    Args:
        save: called on all ranks with the path to save to, a file or directory of its choice.
        load: called on all ranks with such a path.
        save_every: steps between two regular checkpoints; None: only when a stop is requested.
        directory: seen by all nodes: checkpoints lie in a folder of the run in it; by default in ``saved`` in
            the run directory.
        keep: how many complete checkpoints are kept.
        name: where a program has several loops, each has its own; none goes on from the state of another.

    Attributes:
        stopped: the loop was left because of a request: the training is not complete.

    Raises:
        InputError: a number is not positive.
    """

    def __init__(
        self,
        save: Callable[[str], object],
        load: Callable[[str], object],
        *,
        save_every: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        keep: int = KEEP,
        name: str = "",
    ) -> None:
        self._save = save
        self._load = load
        self._saves = Saves(save_every, directory, keep, name=name)
        self._step: int | None = None  # the newest one that is known
        self.stopped = False

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps that are left of `total`, counted from 0; load before the first, save in between.

        Raises:
            InputError: the newest checkpoint was marked without a path, `total` is no whole number, or
                another loop of this name was completed in this program, and this one would make no step.
        """
        total = checked_total(total)
        begun = self.resume()
        key = worker.run_dir() or self._saves.directory, self._saves.name
        saver = getattr(self._save, "__self__", self._save)
        before = _completed.get(key)
        if begun >= total and before is not None and saver not in before:
            raise same_name("loop", self._saves.name, "ElasticLoop")
        for step in range(begun, total):
            yield step
            if self.done(step + 1):
                return
        if begun < total:
            with suppress(TypeError):  # a function in C
                _completed.setdefault(key, WeakSet()).add(saver)

    def resume(self) -> int:
        """Load the newest checkpoint, if there is one, and return how many steps are done.

        Raises:
            InputError: it was marked without a path.
            UnfitFileError: other users could write to it, and so have code run as this one.
        """
        saved = worker.latest_checkpoint(self._saves.name)
        if saved is None:
            return 0
        if saved.path is None:
            raise InputError(
                f"the checkpoint of step {saved.step} was marked without a path",
                where="ElasticLoop",
                fix="give the path to worker.checkpoint_saved, or let ElasticLoop alone save",
            )
        self._load(own_path(saved.path))
        self._step = saved.step
        return saved.step

    def done(self, step: int) -> bool:
        """Tell that `step` steps are done; save if it is time, and return whether to leave the loop now."""
        worker.tick(step)
        self.stopped = worker.should_stop()
        since, self._step = self._step, step
        if self.stopped or self._saves.is_due(step, since):
            with worker.critical("saving"):
                path = self._saves.path(step)
                self._save(path)
                self._saves.saved(step, path)
        return self.stopped
