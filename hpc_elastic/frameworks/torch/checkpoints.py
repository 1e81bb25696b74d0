"""Checkpoints of a PyTorch training that interrupt it for no longer than a copy in memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Literal

from hpc_elastic import worker
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import HpcElasticError, InputError, StoreError
from hpc_elastic.frameworks.saving import KEEP, Saves, check_positive, checked_total
from hpc_elastic.frameworks.torch.background import Background
from hpc_elastic.frameworks.torch.file_source import FileSource
from hpc_elastic.frameworks.torch.memory.node_memory import NodeMemory, RoundStart
from hpc_elastic.frameworks.torch.pace import SavePace
from hpc_elastic.frameworks.torch.rank_groups import rank_groups
from hpc_elastic.frameworks.torch.rank_tensors import differing, digests, parted
from hpc_elastic.frameworks.torch.state_checks import ending_the_run
from hpc_elastic.frameworks.torch.train_state import State, Torch, TrainState, load_torch
from hpc_elastic.frameworks.torch.trees import WHERE
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import CheckpointFacts, read_facts, write_facts
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.save_interval import Disturbances, SaveTimes, disturbances

logger = logging.getLogger(__name__)
AUTO: Literal["auto"] = "auto"
_ENDLESS = 1 << 40  # so many steps are no plan
_FAILURES = 3  # saves in a row that may fail before the training does


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


class _Save(NamedTuple):
    """A save under way.

    Attributes:
        step: steps completed in it.
        path: its directory.
        began: by the clock of this rank [s].
        blocked_s: for how long it has held up the loop [s].
    """

    step: int
    path: str
    began: float
    blocked_s: float


class Checkpoints:
    """Saves the state of a training in the background, and loads it onto any number of ranks.

    All ranks make one after `init_process_group`, and make the same calls in the same order::

        checkpoints = Checkpoints()
        for step in checkpoints.steps(10_000, {"model": model, "optimizer": optimizer}):
            train(step)

    Args:
        directory: seen by all nodes: checkpoints lie in a folder of the run's name in it; by default in
            ``saved`` in the run directory. Without a run and a directory nothing is saved or loaded.
        keep: how many complete checkpoints are kept.
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
            or ranks have no process group.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        keep: int = KEEP,
        every: int | Literal["auto"] | None = AUTO,
        rescue: bool = True,
        memory: bool = True,
        replicas: Literal[0, 1] = 0,
    ) -> None:
        _check_switches(rescue=rescue, memory=memory)
        _check_replicas(replicas, memory=memory)
        self._lib = load_torch()
        self._ranks = rank_groups(self._lib, os.environ, replicas=replicas == 1)
        self._clock: Clock = SystemClock()
        environ = {"RANK": str(self._ranks.rank), "WORLD_SIZE": str(self._ranks.size)}
        environ[Env.ROUND] = os.environ.get(Env.ROUND) or str(self._ranks.told(_next_start(directory)))
        steps = None if every == AUTO else every
        check_positive("every", steps, others=('"auto"',))
        self._saves = Saves(steps, directory, keep, environ=environ, is_whole=_is_whole)
        self._pace = SavePace(self._clock, self._ranks.told) if every == AUTO else None
        self._times: SaveTimes | None = None  # of the last complete save
        self._copies = HostCopies(self._lib)
        self._background = Background("hpc_elastic checkpoint")
        self._memory: NodeMemory | None = None
        if (rescue or memory) and worker.run_dir() is not None:
            self._memory = NodeMemory(self._lib, self._ranks, os.environ, rescue=rescue, copies=memory)
        self._owes = False  # a save of a state that was rescued, as soon as it has gone on
        self._every = every
        self._is_idle = directory is None and worker.run_dir() is None
        self._total: int | None = None  # steps of the whole run; None: not known
        self._saved: int | None = None  # step of the last load or save, failed or not: that of all ranks
        self._failed = 0  # saves in a row
        self.stopped = False
        self.blocked_s = 0.0

    def steps(self, total: int, state: State) -> Iterator[int]:
        """Yield the steps that are left of `total`, counted from 0; load before the first, save in between.

        Raises:
            InputError: as by `load`, the directory cannot be written, or `total` is no whole number.
            StoreError: as by `save` and `wait`.
        """
        total = checked_total(total)
        if not self._is_idle:
            self._saves.check()
        self._total = total if total < _ENDLESS else None
        for step in range(self.load(state), total):
            yield step
            if self.done(step + 1, state):
                return
        self.wait()
        self._end_memory()

    def _end_memory(self) -> None:
        if self._memory is not None:
            self._memory.stop()
        self._ranks.rest()

    def done(self, step: int, state: State) -> bool:
        """Tell that `step` steps are done; save if it is time, and return whether to leave the loop now.

        Raises:
            StoreError: as by `save`; for the checkpoint of a stop also as by `wait`.
        """
        if self._memory is not None:
            self._memory.reached(step, state)
        worker.tick(step, self._total)
        self.stopped = worker.should_stop()
        if self.stopped or self._owes or self.due(step):
            self.save(step, state)
        if self.stopped:
            self.wait()
            self._end_memory()
        return self.stopped

    def due(self, step: int) -> bool:
        """Tell whether a regular checkpoint is to be saved now that `step` steps are done."""
        if self._is_idle:
            return False
        if self._pace is not None:
            return self._pace.is_due(step)
        return self._saves.is_due(step, self._saved or 0)

    def save(self, step: int, state: State) -> None:
        """Copy the state, and write the copy in the background; a save that is under way is waited for first.

        The checkpoint counts when all ranks have written their part. Until then the agent ends no worker,
        unless its time is up.

        Args:
            step: steps that are completed in it; one that is saved already is not saved again.
            state: as `load`.

        Raises:
            InputError: as by `load`, of the state.
            OSError: there can be no directory for it.
            StoreError: this is the third save in a row that has failed.
        """
        if self._is_idle or step == self._saved:
            return
        self._forgive(self._background.wait())
        began = self._clock.monotonic()
        section = worker.critical("saving")
        section.begin()
        try:
            path = self._saves.path(step)
            with ending_the_run():
                objects = TrainState(self._lib, state)
                content = objects.content(self._ranks.rank)
            copy, statistics = self._copies.stage(content), objects.statistics(content)
            self.blocked_s = self._clock.monotonic() - began
            save = _Save(step, path, began, self.blocked_s)
            self._background.start(lambda: self._write(copy, save, statistics), section.end)
        except BaseException:
            section.end()
            raise
        self._saved, self._owes = step, False
        if self._pace is not None:
            self._pace.saved(step, self._times)

    def _parted(self, copy: dict[str, Any], statistics: frozenset[str]) -> dict[str, Any]:
        """Return a copy in which values that differ between ranks have names of this rank (thread)."""
        ranks = self._ranks
        found = digests(self._lib, copy) if ranks.size > 1 else {}
        names = differing(self._lib, ranks, found, ranks.group_of_saves)
        return parted(self._lib, copy, ranks.rank, names, statistics) if names else copy

    def _write(self, copy: dict[str, Any], save: _Save, statistics: frozenset[str]) -> None:
        """Write this rank's part, mark it when the parts of all ranks are on disk, and wait for all marks.

        Raises:
            StoreError: a rank could not write its part or its mark: all ranks get it.
        """
        group, path = self._ranks.group_of_saves, save.path
        try:
            copy = self._parted(copy, statistics)
            self._lib.checkpoint.save(copy, checkpoint_id=path, process_group=group, no_dist=group is None)
        except BaseException as error:
            raise _not_saved(save, error) from error
        failed = next(filter(None, self._ranks.each_told(self._mark(save))), None)
        if failed is not None:
            raise failed
        self._times = SaveTimes(save.blocked_s, self._clock.monotonic() - save.began)
        if self._memory is not None:
            self._memory.saved(save.step)
        if self._ranks.rank == 0:
            self._saves.remove_old()

    def _mark(self, save: _Save) -> StoreError | None:
        try:
            if self._ranks.rank == 0:
                took_s = self._clock.monotonic() - save.began
                size, at = self._ranks.size, self._clock.wall()
                facts = CheckpointFacts(
                    save.step, size, at, save.blocked_s, took_s, self.every_s, self._recovered
                )
                write_facts(save.path, facts)
            self._saves.mark(save.step, save.path)
        except OSError as error:
            return _not_saved(save, error)
        return None

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
        error = self._background.wait()
        if error is not None:
            raise error

    def _forgive(self, error: BaseException | None) -> None:
        """Go on after a save that has failed, as long as that is not the rule.

        Raises:
            StoreError: it is.
        """
        if error is None:
            self._failed = 0
            return
        self._failed += 1
        if self._failed >= _FAILURES:
            raise error
        logger.warning("%s\n  the training goes on, and saves again when it is time", error)

    def load(self, state: State) -> int:
        """Give the objects the state of the newest checkpoint; return how many steps are done, 0 without one.

        It may have been saved by another number of ranks. All ranks load the one that rank 0 finds. Nothing
        is changed if it does not fit.

        Args:
            state: by name: modules and their optimizers, tensors, objects with `state_dict` and
                `load_state_dict`; values that pickle can save, which are replaced in it; dicts of them.

        Raises:
            InputError: the state has no names, or one twice, an optimizer without its module, or a value that
                cannot be saved; the checkpoint is of another model, dtype or
                optimizer, of something else, or gone; or an object differed between its ranks, and there is
                another number of them now: `Resharded`.
        """
        self.wait()
        with ending_the_run():
            objects = TrainState(self._lib, state)
            objects.check()  # a wrong one is refused before the first step
            return self._load_newest(objects, state)

    def _load_newest(self, objects: TrainState, state: State) -> int:
        found = self._ranks.told(self._to_resume() if self._ranks.rank == 0 else None)
        saved = None if found is None else _saved_at(found)
        step = self._load_from_memory(0 if saved is None else saved.step, state)
        if step is None:
            step = 0 if saved is None else saved.step
            if saved is not None:
                source = FileSource(self._lib, saved.path, saved.world_size, self._ranks.group)
                objects.load(source)
                self._saved = step
        worker.resumed(step)
        if self._pace is not None:
            is_first = self._ranks.rank == 0
            past = _disturbances(worker.run_dir(), self._recovered) if is_first else Disturbances()
            self._pace.resume(step, _times(found), past)
        return step

    def _load_from_memory(self, file_step: int, state: State) -> int | None:
        """Give the objects the newest state in the memory of nodes, if it is newer; return its step.

        Raises:
            InputError: as by `load`.
        """
        run_dir = worker.run_dir()
        if self._memory is None or run_dir is None:
            return None
        start = RoundStart(self._saves.round, self._saves.directory, file_step, run_dir)
        step = self._memory.load(start, state)
        if step is not None:
            self._owes = self._every is not None
        return step

    def _to_resume(self) -> str | None:
        """Return the path of the checkpoint to resume from, of the round if there is one.

        Raises:
            InputError: it was marked without a path.
        """
        if self._is_idle:
            return None
        if worker.run_dir() is None:
            newest = self.latest()
            return None if newest is None else newest.path
        marked = worker.latest_checkpoint()
        if marked is not None and marked.path is None:
            raise InputError(
                f"the checkpoint of step {marked.step} was marked without a path",
                where=WHERE,
                fix="let Checkpoints alone save, or load that one yourself",
            )
        return None if marked is None else marked.path

    def all(self) -> list[CompleteCheckpoint]:
        """Return all complete checkpoints, the newest first."""
        if self._is_idle:
            return []
        found = map(_complete, self._saves.complete())
        return [saved for saved in found if saved is not None]

    def latest(self) -> CompleteCheckpoint | None:
        """Return the newest complete checkpoint, or None."""
        return next(iter(self.all()), None)


class HostCopies:
    """Copies states into buffers in host memory, which stay for the next copy.

    PyTorch's ``DefaultStager`` does so too, but that of version 2.11 is of no use for a second copy.

    Args:
        lib: PyTorch's modules.
    """

    def __init__(self, lib: Torch) -> None:
        self._cuda = lib.torch.cuda if lib.torch.cuda.is_available() else None
        self._stager = lib.stager.StateDictStager(pin_memory=self._cuda is not None, share_memory=False)

    def stage(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a copy in host memory, which is the same memory each time."""
        copied: dict[str, Any] = self._stager.stage(content, non_blocking=self._cuda is not None)
        if self._cuda is not None:
            self._cuda.current_stream().synchronize()
        return copied


def _check_switches(**switches: object) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):  # "no" would count as yes
            raise InputError(f"{name} is {value!r}", where=WHERE, fix="give True or False, or leave it out")


def _check_replicas(replicas: int, *, memory: bool) -> None:
    if replicas not in {0, 1} or (replicas and not memory):
        if replicas == 1:
            raise InputError(
                "replicas=1 needs the copies of memory=True, and memory is False",
                where=WHERE,
                fix="leave memory out, or replicas",
            )
        raise InputError(f"replicas is {replicas!r}", where=WHERE, fix="give 0 or 1, or leave it out")


def _next_start(directory: str | os.PathLike[str] | None) -> int:
    """Return a number that no checkpoint of the directory has, for programs without rounds."""
    return 1 + max((start for _, start in Saves(None, directory).found()), default=-1)


def _complete(path: str) -> CompleteCheckpoint | None:
    """Return the checkpoint at a path; None if it is not complete, or of another kind."""
    facts = read_facts(path)
    return None if facts is None else CompleteCheckpoint(facts.step, path, facts.world_size, facts.saved_at)


def _is_whole(path: str) -> bool:
    return read_facts(path) is not None


def _saved_at(path: str) -> CompleteCheckpoint:
    """Return the checkpoint at a path.

    Raises:
        InputError: there is none of this kind.
    """
    saved = _complete(path)
    if saved is None:
        problem = "was not saved by Checkpoints" if os.path.exists(path) else "is gone"
        raise InputError(
            f"the checkpoint to resume from {problem}: {path}",
            where=WHERE,
            fix="load it yourself, give its place back, or begin a new run",
        )
    return saved


def _times(path: str | None) -> SaveTimes | None:
    """Return the time that the save of a checkpoint has taken; None if that is not known."""
    facts = None if path is None else read_facts(path)
    return None if facts is None else SaveTimes(facts.blocked_s, facts.took_s)


def _disturbances(run_dir: str | None, recovered: tuple[int, ...]) -> Disturbances:
    """Return the faults of a run, as far as its journal can be read now."""
    if run_dir is None:
        return Disturbances()
    try:
        return disturbances(read_records(RunPaths(run_dir)), recovered)
    except (OSError, HpcElasticError):
        return Disturbances()


def _not_saved(save: _Save, error: BaseException) -> StoreError:
    """Return the error of a save, with the words of the ranks that have failed."""
    failures = getattr(error, "failures", None)  # of all ranks, with their stacks: torch's
    first: BaseException = error
    by = ""
    if failures:
        rank, (first, _) = next(iter(failures.items()))
        by = f" on rank {rank}"
    return StoreError(
        f"the checkpoint of step {save.step} was not saved{by}: {type(first).__name__}: {first}: {save.path}",
        errno=getattr(first, "errno", None),
    )
