"""For Hugging Face's Trainer: a callback that saves and stops."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.bases import (
    become,
    check_begin,
    check_first,
    check_same_trainer,
    check_trainer,
    note_step,
)
from hpc_elastic.frameworks.saving import Saves, latest

if TYPE_CHECKING:
    from hpc_elastic.frameworks.transformers_resume import TransformersResume
    from hpc_elastic.worker.progress import CriticalSection

__all__ = ["ElasticTrainerCallback", "latest", "output_dir"]

_WHERE = "hpc_elastic.frameworks.transformers"


def _base() -> Any:
    """Return the class of callbacks.

    Raises:
        InputError: Transformers is not installed.
    """
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
    raise InputError("Transformers is not installed", where=_WHERE, fix="pip install transformers")


def _refuse_models_alone(args: Any) -> None:
    """Refuse checkpoints from which no training goes on; no restart helps.

    Raises:
        InputError: the Trainer saves the model alone.
    """
    if worker.run_dir() is not None and getattr(args, "save_only_model", False):
        what = "its checkpoints have no optimizer and no schedule, so a training cannot go on from one"
        if worker.attached():
            worker.give_up(f"save_only_model=True: {what}")
        raise InputError(what, where="TrainingArguments(save_only_model=True)", fix="leave it out")


def output_dir(name: str = "output") -> str:
    """Return a folder of the run directory for `TrainingArguments(output_dir=...)`; without a run, `name`."""
    return os.path.join(worker.run_dir() or "", name)


class ElasticTrainerCallback:
    """Tells the agent of each optimizer step, and has the Trainer save and stop when that is requested.

    ``elastic = ElasticTrainerCallback()``, ``trainer = Trainer(..., callbacks=[elastic])`` and
    ``trainer.train(resume_from_checkpoint=elastic.newest(trainer))``. Every checkpoint the Trainer saves
    counts once all ranks have saved their part; `save_steps` and `save_total_limit` say how often and how
    many. When a stop is requested all ranks save after the same step, and `train` returns.

    Args:
        name: of the checkpoints, where a program trains several times: each training has its own, and an
            ``output_dir`` of its own. Only the first one has states in memory.

    Attributes:
        stopped: `train` was left because of a request: the training is not complete.

    Raises:
        InputError: Transformers is not installed, or the name cannot be one.
    """

    def __init__(self, *, name: str = "") -> None:
        become(self, _base())
        super().__init__()
        self._saves = Saves(name=name)
        self._critical: CriticalSection | None = None
        self._resume: TransformersResume | None = None
        self._owes = False  # a checkpoint of a state that was in memory, as soon as it has gone on
        self.stopped = False

    def newest(self, trainer: Any) -> str | None:
        """Return the path to resume from, of the newest checkpoint or of a newer state in the nodes' memory.

        From now on a rank keeps its state in its node's memory when another rank or its node fails. All ranks
        call it, right before `train`. None at the first start.

        Raises:
            InputError: the Trainer does not have this callback, or saves no optimizer, or another one has
                trained with checkpoints of this name.
        """
        check_trainer(self, trainer, getattr(getattr(trainer, "callback_handler", None), "callbacks", None))
        _refuse_models_alone(trainer.args)
        if worker.run_dir() is not None:
            check_first(self, self._saves.name, trainer)
            from hpc_elastic.frameworks.transformers_resume import resume_of  # noqa: PLC0415 - loads PyTorch

            self._resume = resume_of(trainer, self._saves)
        kept = None if self._resume is None else self._resume.path
        return self._saves.newest() if kept is None else kept

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """A training begins, or goes on.

        Raises:
            InputError: the state in memory is of another model or Trainer, or `train` was not given its path;
                or the Trainer saves no optimizer; or the training begins anew, and another one of the
                program had checkpoints of its name.
        """
        _refuse_models_alone(args)
        check_begin(self, self._saves.name, state.global_step)
        self.stopped = False
        if self._resume is not None:
            check_same_trainer(self, is_same=self._resume.is_of(state))
            self._owes = self._resume.path is not None and args.save_strategy != "no"
            names = ("model", "optimizer", "lr_scheduler")
            self._resume.begin(state.global_step, *(objects.get(name) for name in names))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take note of the random states before the optimizer's step."""
        if self._resume is not None:
            self._resume.stepping(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each optimizer step: tell it, and ask the Trainer to save and stop if that is wanted."""
        if self._resume is not None:
            self._resume.reached(state.global_step)
        note_step(self._saves.name, state.global_step)
        total = getattr(state, "max_steps", 0)
        worker.tick(state.global_step, total if total > 0 else None)
        if worker.should_stop():
            self.stopped = True
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True
        control.should_save = control.should_save or self._owes
        self._owes = False
        if control.should_save and not control.should_evaluate and self._critical is None:
            self._critical = worker.critical("saving")
            self._critical.begin()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The hooks at the end of an epoch are not wanted once the training has to stop."""
        if self.stopped:
            control.should_save = control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark this rank's part of the Trainer's checkpoint."""
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        self._saves.mark(state.global_step, path)
        if self._critical is not None:
            self._critical.end()
            self._critical = None
        if self._resume is not None:
            self._resume.memory.saved(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """No state is kept after the training; one that was complete before it began is noted, too."""
        note_step(self._saves.name, state.global_step)
        if self._resume is not None:
            self._resume.end()
