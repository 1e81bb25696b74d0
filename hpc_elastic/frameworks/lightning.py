"""For Lightning's Trainer: a callback that saves and stops, and the shape of the run."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
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
from hpc_elastic.frameworks.saving import KEEP, Saves, latest

if TYPE_CHECKING:
    from hpc_elastic.frameworks.lightning_resume import LightningResume
    from hpc_elastic.worker.progress import Block

__all__ = ["ElasticCallback", "latest", "trainer_shape"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same code under two names


def _package() -> str | None:
    """Return the name under which the caller knows Lightning, None without it."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in (*loaded, *_PACKAGES):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in {name, name.partition(".")[0]}:
                raise
        else:
            return name
    return None


def _base() -> Any:
    """Return the class of callbacks of the package that the caller uses.

    Raises:
        InputError: Lightning is not installed.
    """
    package = _package()
    if package is None:
        raise InputError(
            "Lightning is not installed",
            where="hpc_elastic.frameworks.lightning",
            fix="pip install lightning",
        )
    return importlib.import_module(f"{package}.callbacks").Callback


def trainer_shape(environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return `devices` and `num_nodes` for the Trainer or Fabric, as many as there are in this round.

    Without an agent it is empty, so that Lightning decides.
    """
    environ = os.environ if environ is None else environ
    if "LOCAL_WORLD_SIZE" not in environ or "GROUP_WORLD_SIZE" not in environ:
        return {}
    return {"devices": int(environ["LOCAL_WORLD_SIZE"]), "num_nodes": int(environ["GROUP_WORLD_SIZE"])}


class ElasticCallback:
    """Tells the agent of each optimizer step, saves, and ends `fit` when a stop is requested.

    ``elastic = ElasticCallback()``, ``trainer = Trainer(callbacks=[..., elastic])``, as the last one, and
    ``trainer.fit(model, ckpt_path=elastic.newest(trainer))``. When a stop is requested all ranks save after
    the same step, and `fit` returns at once, without validation and the other hooks at the end of an epoch.

    Args:
        save_every: optimizer steps between two regular checkpoints; None: only when a stop is requested.
        directory: seen by all nodes: checkpoints lie in a folder of the run's name in it; by default in
            ``saved`` in the run directory.
        keep: how many complete checkpoints are kept.
        name: of the checkpoints, where a program trains several times: each training has its own. Only the
            first one has states in memory.

    Attributes:
        stopped: `fit` was left because of a request: the training is not complete.

    Raises:
        InputError: Lightning is not installed, or a number is not positive.
    """

    def __init__(
        self,
        save_every: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        keep: int = KEEP,
        *,
        name: str = "",
    ) -> None:
        become(self, _base())
        super().__init__()
        self._saves = Saves(save_every, directory, keep, name=name)
        self._step = -1  # the newest one that is known
        self._validation: Block | None = None
        self._on_sigterm: Any = signal.SIG_DFL
        self._resume: LightningResume | None = None
        self._is_regular = save_every is not None
        self._owes = False  # a checkpoint of a state that was in memory, as soon as it has gone on
        self.stopped = False

    def newest(self, trainer: Any) -> str | None:
        """Return the path to resume from, of the newest checkpoint or of a newer state in the nodes' memory.

        From now on a rank keeps its state in its node's memory when another rank or its node fails. All ranks
        call it, right before `fit`. None at the first start.

        Raises:
            InputError: the Trainer does not have this callback, or takes its ranks from Slurm, or another one
                has trained with checkpoints of this name.
        """
        check_trainer(self, trainer, getattr(trainer, "callbacks", None))
        _refuse_slurm_of(trainer)  # before it waits for the ranks of tasks that are not there
        package = _package()
        if worker.run_dir() is not None and package is not None:
            check_first(self, self._saves.name, trainer)
            from hpc_elastic.frameworks.lightning_resume import resume_of  # noqa: PLC0415 - loads PyTorch

            self._resume = resume_of(trainer, importlib.import_module(package), self._saves)
        kept = None if self._resume is None else self._resume.path
        return self._saves.newest() if kept is None else kept

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remember the handler of SIGTERM before Lightning catches it.

        Raises:
            InputError: Lightning takes its ranks from Slurm, though an agent has started this process, or
                another Trainer begins than the one that `newest` was given.
        """
        if self._resume is not None and stage == "fit":
            check_same_trainer(self, is_same=self._resume.is_of(trainer))
        _refuse_slurm_of(trainer)
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the state in memory, if that is the newest, and give SIGTERM back.

        Lightning's handler waits in a broadcast for ranks that may be dead; an agent that sends it has
        asked before and wants the process to end.

        Raises:
            InputError: the state in memory is of another model, or `fit` was not given its path; or the
                training begins anew, and another one of the program had checkpoints of its name.
        """
        check_begin(self, self._saves.name, trainer.global_step)
        self._step = trainer.global_step
        self.stopped = False
        if self._resume is not None:
            self._owes = self._resume.begin(trainer) and self._is_regular
        if worker.attached() and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm or signal.SIG_DFL)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After each optimizer step: tell it, save if it is time, leave if that is wanted."""
        step = trainer.global_step
        if step == self._step:
            return  # gradients are being accumulated
        since, self._step = self._step, step
        if self._resume is not None:
            self._resume.reached(step)
        worker.tick(step)
        note_step(self._saves.name, step)
        self.stopped = worker.should_stop()
        if self.stopped or self._owes or self._saves.is_due(step, since):
            self._owes = False
            with worker.critical("saving"):
                path = self._saves.path(step)
                trainer.save_checkpoint(path, weights_only=False)
                self._saves.saved(step, path)
            if self._resume is not None:
                self._resume.memory.saved(step)
        if self.stopped:
            self._end_resume()
            _leave(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Keep the newest state before Lightning moves it away."""
        if self._resume is not None:
            self._resume.memory.keep()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """No state is kept after the training."""
        self._end_resume()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take note of the end of a training, also of one that was complete before it began."""
        if stage == "fit":
            note_step(self._saves.name, trainer.global_step)

    def _end_resume(self) -> None:
        if self._resume is not None:
            self._resume.memory.stop()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Name the time that is no training, so that it is not taken for a hang."""
        self._validation = worker.section("validation")
        self._validation.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the section."""
        if self._validation is not None:
            self._validation.__exit__(None, None, None)
            self._validation = None


def _refuse_slurm_of(trainer: Any) -> None:
    if worker.attached():
        knows = getattr(trainer, "_accelerator_connector", trainer.strategy)
        _refuse_slurm(getattr(knows, "cluster_environment", None))


def _refuse_slurm(environment: object) -> None:
    if any(kind.__name__ == "SLURMEnvironment" for kind in type(environment).__mro__):
        raise InputError(
            "SLURMEnvironment takes a rank per task of Slurm, not per worker, and requeues the job by itself",
            where="plugins of the Trainer",
            fix="remove it: below an agent Lightning finds the ranks by TorchElasticEnvironment",
        )


def _leave(trainer: Any) -> None:
    """End `fit` in order.

    `should_stop` alone would first validate and then run the hooks at the end of an epoch, which may
    take longer than the time that is left, and heeds `min_epochs`. Lightning's own exception for leaving at
    once tears everything down and lets `fit` return.
    """
    trainer.should_stop = True
    exceptions = importlib.import_module(f"{_package()}.utilities.exceptions")
    leave = getattr(exceptions, "_TunerExitException", None)
    if leave is not None:
        raise leave
