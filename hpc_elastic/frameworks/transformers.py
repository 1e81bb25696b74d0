"""For Hugging Face's Trainer: a callback that saves and stops."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.bases import become
from hpc_elastic.frameworks.saving import Saves, latest

if TYPE_CHECKING:
    from hpc_elastic.worker.sections import CriticalSection

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


def output_dir(name: str = "output") -> str:
    """Return a folder of the run directory for `TrainingArguments(output_dir=...)`; without a run, `name`."""
    return os.path.join(worker.run_dir() or "", name)


class ElasticTrainerCallback:
    """Tells the agent of each optimizer step, and has the Trainer save and stop when that is requested.

    ``Trainer(..., callbacks=[ElasticTrainerCallback()])`` and
    ``trainer.train(resume_from_checkpoint=latest())``. Every checkpoint the Trainer saves counts once
    all ranks have saved their part; `save_steps` and `save_total_limit` say how often and how many.
    When a stop is requested all ranks save after the same step, and `train` returns.

    Attributes:
        stopped: `train` was left because of a request: the training is not complete.

    Raises:
        InputError: Transformers is not installed.
    """

    def __init__(self) -> None:
        become(self, _base())
        super().__init__()
        self._saves = Saves()
        self._critical: CriticalSection | None = None
        self.stopped = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A training begins."""
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each optimizer step: tell it, and ask the Trainer to save and stop if that is wanted."""
        total = getattr(state, "max_steps", 0)
        worker.tick(state.global_step, total if total > 0 else None)
        if worker.should_stop():
            self.stopped = True
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True
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
