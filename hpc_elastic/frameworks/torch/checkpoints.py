"""Checkpoints of a PyTorch training that interrupt it for no longer than a copy in memory."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal
from weakref import WeakSet

from hpc_elastic import worker
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError, StoreError
from hpc_elastic.frameworks.saving import KEEP, Saves, check_memory, check_positive, checked_total, same_name
from hpc_elastic.frameworks.torch.background import END_S, Background, HostCopies
from hpc_elastic.frameworks.torch.checkpoint_files import (
    CompleteCheckpoint,
    FileSource,
    FoundCheckpoints,
    not_saved,
    text_at_end,
    with_own_files,
)
from hpc_elastic.frameworks.torch.memory.node_memory import NodeMemory, RoundStart
from hpc_elastic.frameworks.torch.optimizer_state import ending_the_run
from hpc_elastic.frameworks.torch.pace import RetryPace, SavePace, past_disturbances
from hpc_elastic.frameworks.torch.rank_groups import differing, digests, parted, rank_groups
from hpc_elastic.frameworks.torch.train_state import State, TrainState, load_torch
from hpc_elastic.frameworks.torch.trees import WHERE, unwrapped
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import (
    CheckpointFacts,
    FailedSave,
    SavedFile,
    note_failed,
    read_facts,
    write_facts,
)
from hpc_elastic.record.save_interval import Disturbances, SaveTimes
from hpc_elastic.worker.progress import step_error

logger = logging.getLogger(__name__)
AUTO: Literal["auto"] = "auto"
_ENDLESS = 1 << 40  # so many steps are no plan
_FAILURES = 3  # saves in a row that may fail before the training does


class _Save(NamedTuple):
    """A save under way."""

    step: int  # steps completed in it
    path: str
    began: float  # by the clock of this rank [s]
    blocked_s: float  # for so long it has held up the loop


class Checkpoints:
    """Saves the state of a training in the background, and loads it onto any number of ranks.

    All ranks make one after `init_process_group`, and make the same calls in the same order::

        checkpoints = Checkpoints()
        for step in checkpoints.steps(10_000, {"model": model, "optimizer": optimizer}):
            train(step)

    Args:
        directory: seen by all nodes: checkpoints lie in a folder of the run in it; by default in ``saved`` in
            the run directory. Without a run and a directory nothing is saved or loaded.
        keep: how many complete checkpoints are kept.
        name: where a program has several, each has its own, and none saves over or loads those of another.
            Only a single one has states in memory.
        every: ``"auto"``: at the interval that costs the least time, by the measured cost of a save and the
            faults of this run; or the steps between two regular ones; None: only when a stop is requested.
        rescue: when a rank or a node fails, another rank keeps its newest state in its node's memory, from
            which the next start goes on; for states on CPUs or one GPU, of which every rank has the whole.
        memory: the state is copied to the node's memory, at an interval that costs a hundredth of the time, a
            thousandth where all ranks can keep theirs at a fault; the next start goes on from there if it has
            as many ranks, and the copies of all of them.
        replicas: 1: each copy is also sent to the memory of another node, so that the loss of one node costs
            no more than the work since the last copy; 0: it is not.

    Attributes:
        stopped: the loop was left because of a request: the training is not complete.
        blocked_s: for how long the last save has held up the loop [s].

    Raises:
        InputError: a number is not positive, a switch is neither True nor False, PyTorch is not installed,
            ranks have no process group, or the program has another object of this name.
        OSError: the run directory does not answer.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        keep: int = KEEP,
        name: str = "",
        every: int | Literal["auto"] | None = AUTO,
        rescue: bool = True,
        memory: bool = True,
        replicas: Literal[0, 1] = 0,
    ) -> None:
        check_memory(WHERE, replicas, memory=memory, rescue=rescue)
        self._lib = load_torch()
        self._ranks = rank_groups(self._lib, os.environ, replicas=replicas == 1)
        self._clock: Clock = SystemClock()
        environ = {"RANK": str(self._ranks.rank), "WORLD_SIZE": str(self._ranks.size)}
        environ[Env.ROUND] = os.environ.get(Env.ROUND) or str(self._ranks.told(_next_start(directory, name)))
        steps = None if every == AUTO else every
        check_positive("every", steps, others=('"auto"',))
        self._saves = Saves(steps, directory, keep, name=name, environ=environ, is_whole=_is_whole)
        self._found = FoundCheckpoints(self._ranks, self._saves)
        self._pace = SavePace(self._clock, self._ranks.told) if every == AUTO else None
        self._times: SaveTimes | None = None  # of the last complete save
        self._copies = HostCopies(self._lib)
        self._background = Background("hpc_elastic checkpoint", at_end=text_at_end)
        self._retry = RetryPace(self._ranks.told, self._background.look)
        self._memory: NodeMemory | None = None
        if _is_alone(self) and (rescue or memory) and worker.run_dir() is not None:
            self._memory = NodeMemory(self._lib, self._ranks, os.environ, rescue=rescue, copies=memory)
        self._owes = False  # a save of a state that was rescued, as soon as it has gone on
        self._every = every
        self._is_idle = directory is None and worker.run_dir() is None
        self._total: int | None = None  # steps of the whole run; None: not known
        self._since = 0  # step of the last load or save, failed or not: that of all ranks
        self._saved: int | None = None  # the same; None: it has failed
        self._is_retry = False  # the last save
        self._newest = worker.branch(), 0  # step of the program, and how often it had gone back
        self._failed = 0  # saves in a row
        self.stopped, self.blocked_s = False, 0.0

    @property
    def _owner(self) -> tuple[str, str]:
        """The run or directory, and the name of this object."""
        return (worker.run_dir() or self._saves.directory, self._saves.name)

    def _leave_memory(self) -> None:
        """Keep no state in memory from now on."""
        if self._memory is not None:
            self._memory.stop()
            self._memory = None

    def steps(self, total: int, state: State) -> Iterator[int]:
        """Yield the steps that are left of `total`, counted from 0; load before the first, save in between.

        Raises:
            InputError: as by `load`, the directory cannot be written, `total` is no whole number, or another
                training of this name was completed in this program, and this one would make no step.
            StoreError: as by `save` and `wait`.
        """
        total = checked_total(total)
        if not self._is_idle:
            self._saves.check()
        self._total = total if total < _ENDLESS else None
        begun = self.load(state)
        with ending_the_run():
            self._require_steps(begun, total, state)
        for step in range(begun, total):
            try:
                yield step
            except GeneratorExit:  # the loop was left, and groups of ranks may be destroyed next
                self._background.join(END_S)
                raise
            if self.done(step + 1, state):
                return
        self.wait()
        _completed.setdefault(self._owner, WeakSet()).update(self._modules(state))
        self._end_memory()

    def _require_steps(self, begun: int, total: int, state: State) -> None:
        """Refuse a training that would end with the state of another one, which was completed before it.

        Raises:
            InputError: this is such a training: of the same name, with other modules.
        """
        modules, before = self._modules(state), _completed.get(self._owner)
        if begun < total or before is None or not modules or any(one in before for one in modules):
            return
        raise same_name("training", self._saves.name, "Checkpoints")

    def _modules(self, state: State) -> list[Any]:
        """Return the modules of a state, without those around them, such as DistributedDataParallel."""
        kind = self._lib.torch.nn.Module
        return [one for value in state.values() if isinstance(one := unwrapped(value), kind)]

    def _end_memory(self) -> None:
        if self._memory is not None:
            self._memory.stop()
        self._ranks.rest()
        _live.discard(self)

    def done(self, step: int, state: State) -> bool:
        """Tell that `step` steps are done; save if it is time, and return whether to leave the loop now.

        Raises:
            InputError: steps are counted backwards or anew.
            StoreError: as by `save`; for the checkpoint of a stop also as by `wait`.
        """
        self._follow(step)
        if self._memory is not None:
            self._memory.reached(step, state)
        worker.tick(step, self._total)
        self.stopped = worker.should_stop()
        if self.stopped or self._owes or self.due(step):
            self.save(step, state)
        elif self._retry.is_due(step):
            self._save(step, state, is_retry=True)
        if self.stopped:
            self.wait()
            self._end_memory()
        return self.stopped

    def _follow(self, step: int) -> None:
        """Take note of a step.

        Raises:
            InputError: it is before the last one, and the program has not gone back on purpose.
        """
        branch, newest = self._newest
        if worker.branch() == branch and step < newest:
            raise step_error(step, newest)
        if worker.branch() != branch:
            self._leave_memory()  # its states are those that were left
            self._begin(max(0, step - 1))
        self._newest = worker.branch(), step

    def _begin(self, step: int) -> None:
        """Count the steps to the next save from a step on."""
        self._since, self._saved = step, None
        self._retry = RetryPace(self._ranks.told, self._background.look)
        if self._pace is not None:
            self._pace.saved(step, None)

    def due(self, step: int) -> bool:
        """Tell whether a regular checkpoint is to be saved now that `step` steps are done."""
        if self._is_idle:
            return False
        if self._pace is not None:
            return self._pace.is_due(step)
        return self._saves.is_due(step, self._since)

    def save(self, step: int, state: State) -> None:
        """Copy the state, and write the copy in the background; a save that is under way is waited for first.

        The checkpoint counts when all ranks have written their part. Until then the agent ends no worker,
        unless its time is up.

        Args:
            step: steps that are completed in it; one that is saved already is not saved again.
            state: as `load`.

        Raises:
            InputError: as by `load`, of the state, or steps are counted backwards or anew.
            OSError: there can be no directory for it.
            StoreError: this is the third save in a row that has failed.
        """
        self._save(step, state)

    def _save(self, step: int, state: State, *, is_retry: bool = False) -> None:
        if self._is_idle:
            return
        self._follow(step)
        self._forgive(self._heard())
        if step == self._saved:
            return
        began = self._clock.monotonic()
        section = worker.critical("saving")
        section.begin()
        try:
            path = self._saves.path(step)
            with ending_the_run():
                objects = TrainState(self._lib, state)
                content = objects.content(self._ranks.rank)
            found = objects.replicated()
            statistics = {name: is_sent for name, _, is_sent in found if is_sent is not None}
            copy = self._copies.stage(content)
            self.blocked_s = self._clock.monotonic() - began
            save = _Save(step, path, began, self.blocked_s)
            self._background.start(lambda: self._write(copy, save, statistics), section.end)
        except BaseException:
            section.end()
            raise
        self._since = self._saved = step
        self._owes, self._is_retry = False, is_retry
        self._retry.saved(step, is_retry=is_retry)
        if self._pace is not None:
            self._pace.saved(step, self._times)

    def _parted(self, copy: dict[str, Any], statistics: Mapping[str, bool]) -> dict[str, Any]:
        """Return a copy in which values that differ between ranks have names of this rank (thread)."""
        ranks = self._ranks
        found = digests(self._lib, copy) if ranks.size > 1 else {}
        names = differing(self._lib, ranks, found, ranks.group_of_saves)
        memory = self._memory  # the loop may leave it
        if names and memory is not None:
            own = sorted(one for one in names if not statistics.get(one))
            memory.differs(own[0] if own else "")
        others = {name for name, one in copy.items() if not isinstance(one, self._lib.torch.Tensor)}
        return parted(self._lib, copy, ranks.rank, names, {*statistics, *others}) if names else copy

    def _write(self, copy: dict[str, Any], save: _Save, statistics: Mapping[str, bool]) -> None:
        """Save this rank's part; the rest of a save that fails on any rank is removed at once.

        Raises:
            StoreError: a rank could not write its part or its mark: all ranks get it.
        """
        if self._is_there(save):
            return
        try:
            self._write_part(copy, save, statistics)
        except BaseException as error:
            self._saves.discard(save.step, save.path)
            logger.warning("%s\n  the training goes on, and the save is tried again soon", error)
            self._note(FailedSave(save.step, self._saves.round, self._clock.wall(), str(error)))
            raise
        self._note(None)
        self._times = SaveTimes(save.blocked_s, self._clock.monotonic() - save.began)
        memory = self._memory  # the loop may leave it
        if memory is not None:
            memory.saved(save.step)
        if self._ranks.rank == 0:
            self._saves.remove_old()

    def _is_there(self, save: _Save) -> bool:
        """Tell whether an object that was made before has saved the same step; all ranks call it (thread).

        Raises:
            StoreError: a rank does not answer.
        """
        is_mine = False
        with suppress(OSError, InputError):
            is_mine = self._ranks.rank == 0 and _is_whole(save.path) and save.path in self._saves.complete()
        try:
            return any(self._ranks.each_told(is_mine))
        except RuntimeError as error:
            raise not_saved(save.step, save.path, error) from error

    def _write_part(self, copy: dict[str, Any], save: _Save, statistics: Mapping[str, bool]) -> None:
        """Write this rank's part, mark it when the parts of all ranks are on disk, and wait for all marks."""
        group, lib = self._ranks.group_of_saves, self._lib.checkpoint
        into = with_own_files(lib.FileSystemWriter(save.path))
        try:
            copy = self._parted(copy, statistics)
            lib.save(
                copy, checkpoint_id=save.path, storage_writer=into, process_group=group, no_dist=group is None
            )
            files = [one for written in self._ranks.each_told(into.fs.written()) for one in written]
        except BaseException as error:
            raise not_saved(save.step, save.path, error) from error
        for failed in filter(None, self._ranks.each_told(self._mark(save, files))):
            raise failed

    def _mark(self, save: _Save, files: Iterable[SavedFile]) -> StoreError | None:
        try:
            if self._ranks.rank == 0:
                write_facts(save.path, self._facts(save)._replace(files=tuple(files)))
            self._saves.mark(save.step, save.path)
        except OSError as error:
            return not_saved(save.step, save.path, error)
        return None

    def _facts(self, save: _Save) -> CheckpointFacts:
        return CheckpointFacts(
            save.step,
            self._ranks.size,
            self._clock.wall(),
            save.blocked_s,
            self._clock.monotonic() - save.began,
            self.every_s,
            self._recovered,
            self._saves.run,
            self._saves.name,
        )

    def _note(self, failed: FailedSave | None) -> None:
        """Have people see in the run directory that the last save has failed."""
        root = worker.run_dir()
        if root is not None and self._ranks.rank == 0:
            with suppress(OSError):  # where the disk is full, the log tells
                note_failed(RunPaths(root), failed, self._saves.name)

    @property
    def _recovered(self) -> tuple[int, ...]:
        """The rounds whose fault has lost next to nothing."""
        return () if self._memory is None else self._memory.recovered

    @property
    def every_s(self) -> float | None:
        """The interval of saves at this moment, if it chooses itself [s]."""
        return None if self._pace is None else self._pace.interval_s

    def wait(self) -> None:
        """Come back when no save is under way.

        Raises:
            StoreError: the last one has failed.
        """
        error = self._heard()
        if error is not None:
            raise error

    def _heard(self) -> BaseException | None:
        """Wait for the save under way; return its error, once."""
        error = self._background.wait()
        if error is not None:
            self._saved = None
        return error

    def _forgive(self, error: BaseException | None) -> None:
        """Go on after a save that has failed, as long as that is not the rule.

        Raises:
            StoreError: it is.
        """
        if error is None:
            self._failed = 0
            return
        self._failed += not self._is_retry
        if self._failed >= _FAILURES:
            raise error

    def load(self, state: State) -> int:
        """Give the objects the state of the newest checkpoint; return how many steps are done, 0 without one.

        It may have been saved by another number of ranks. All ranks load the one that rank 0 finds. Nothing
        is changed if it does not fit.

        Args:
            state: by name: modules and their optimizers, tensors, objects with `state_dict` and
                `load_state_dict`; values that pickle can save, which are replaced in it; dicts of them.

        Raises:
            InputError: the state has no names, or one twice, an optimizer without its module, or a value that
                cannot be saved; the checkpoint is of another model, dtype or optimizer, of something else, or
                gone; or an object differed between its ranks, and there is another number of them now:
                `Resharded`.
            UnfitFileError: other users could write to the checkpoint, and so have code run as this one.
        """
        try:
            return self._load(state)
        except BaseException:
            _live.discard(self)  # the program may make another one
            raise

    def _load(self, state: State) -> int:
        self.wait()
        with ending_the_run():
            objects = TrainState(self._lib, state)
            objects.check()  # a wrong one is refused before the first step
            return self._load_newest(objects)

    def _load_newest(self, objects: TrainState) -> int:
        found, saves = self._found, self._saves
        if not self._is_idle:
            found.look()
        step: int | None = None
        if self._memory is not None:
            run_dir = worker.run_dir() or ""
            start = RoundStart(saves.round, saves.directory, found.step, run_dir, found.whole_step)
            kept = self._memory.find(start, objects.load)
            step = None if kept is None else kept.state.step
            self._owes = kept is not None and self._every is not None
        saved = found.newest if step is not None else found.whole()
        if step is None:
            step = 0 if saved is None else saved.step
            if saved is not None:
                objects.load(FileSource(self._lib, self._ranks, saved.path, saved.world_size))
                self._saved = step
        worker.resumed(step, name=self._saves.name)
        self._since, self._newest = step, (worker.branch(), step)
        if self._pace is not None:
            is_first = self._ranks.rank == 0
            past = past_disturbances(worker.run_dir(), self._recovered) if is_first else Disturbances()
            self._pace.resume(step, _times(None if saved is None else saved.path), past)
        return step

    def all(self) -> list[CompleteCheckpoint]:
        """Return all complete checkpoints, the newest first."""
        return [] if self._is_idle else self._found.all()

    def latest(self) -> CompleteCheckpoint | None:
        """Return the newest complete checkpoint, or None."""
        return next(iter(self.all()), None)


_live: WeakSet[Checkpoints] = WeakSet()  # those of this program
_completed: dict[tuple[str, str], WeakSet[Any]] = {}  # the modules of its trainings that made all steps
_owners: set[tuple[str, str]] = set()  # of all that it has made, those too that have come to their end


def _is_alone(made: Checkpoints) -> bool:
    """Take note of an object; tell whether it is the only one. Of several none has states in memory.

    Nor has one that is made after the end of another, which at the next start would take them for its own.

    Raises:
        InputError: there is another one of its name.
    """
    run, name = owner = made._owner  # noqa: SLF001 - of this module
    if any(one._owner == owner for one in _live):  # noqa: SLF001
        gc.collect()  # the first one may be held by nothing but cycles, as after a function that has trained
    owners = {one: one._owner for one in _live}  # noqa: SLF001
    if owner in owners.values():
        raise InputError(
            f"this program has Checkpoints {f'of the name {name!r}' if name else 'without a name'} already",
            where=WHERE,
            fix='give each one a name: Checkpoints(name="generator"), Checkpoints(name="discriminator"); or '
            "delete the first one before you make it again",
        )
    for one, (of, _) in owners.items():
        if of == run:
            one._leave_memory()  # noqa: SLF001
    _live.add(made)
    _owners.add(owner)
    return all(of != run or one == name for of, one in _owners)


def _next_start(directory: str | os.PathLike[str] | None, name: str) -> int:
    """Return a number that no checkpoint of the directory has, for programs without rounds."""
    return 1 + max((start for start, _, _ in Saves(None, directory, name=name).found()), default=-1)


def _is_whole(path: str) -> bool:
    return read_facts(path) is not None


def _times(path: str | None) -> SaveTimes | None:
    """Return the time that the save of a checkpoint has taken; None if that is not known."""
    facts = None if path is None else read_facts(path)
    return None if facts is None else SaveTimes(facts.blocked_s, facts.took_s)
