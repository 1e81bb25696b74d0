"""How Lightning's Trainer goes on from a state in the memory of nodes.

The Trainer reads its place (loops and callbacks) from a checkpoint before it makes its optimizers. A
checkpoint with the place alone is made for it, and its strategy's way to read checkpoints stands aside for
that one; weights, optimizers and schedules come from memory. The keys are those of Lightning's own
checkpoints.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpc_elastic.frameworks.torch.memory.rescue import steps_as_torch
from hpc_elastic.frameworks.torch.train_state import Replicated, State
from hpc_elastic.frameworks.torch.trainer_memory import MemoryState, TrainerMemory, trainer_memory
from hpc_elastic.frameworks.torch.trees import unwrapped

if TYPE_CHECKING:
    from hpc_elastic.frameworks.saving import Saves

_PLACE = "trainer"  # the name of the Trainer's place in a state
_CALL = "trainer.fit(..., ckpt_path=elastic.newest(trainer))"
_LARGE = {"StochasticWeightAveraging"}  # callbacks whose state grows
_MOST = 1 << 22  # bytes of the tensors in a callback's state, which is copied after each step
_HOOKS = ("on_save_checkpoint", "on_load_checkpoint")  # save and load more, which a state in memory lacks


def unfit_reason(strategy: Any) -> str:
    """Return the reason for which no rank of a strategy has a whole state; empty: there is none."""
    name = type(strategy).__name__  # DeepSpeed's is a kind of DDP's, and shards
    if name in {"DDPStrategy", "SingleDeviceStrategy"}:
        return ""
    return f"{name} is not known to leave a whole state on each rank"


def content_reason(trainer: Any, base: Any) -> str:
    """Return the reason for which a state in memory might lack something; empty: there is none.

    Args:
        trainer: the Trainer, with its module.
        base: the package: ``lightning.pytorch``.
    """
    owners = [(trainer.lightning_module, base.LightningModule)]
    owners += [(one, base.Callback) for one in trainer.callbacks]
    owners += [(trainer.datamodule, base.LightningDataModule)] * (trainer.datamodule is not None)
    for one, kind in owners:
        if type(one).__name__ in _LARGE or (one in trainer.callbacks and _size(one.state_dict()) > _MOST):
            return f"{type(one).__name__} has a large state"
        for name in _HOOKS:
            if getattr(type(one), name, None) is not getattr(kind, name, None):
                return f"{type(one).__name__} has an {name} of its own"
    others = [one for one in trainer.optimizers if not steps_as_torch(one)]
    return f"{type(others[0]).__name__} may not step as PyTorch's optimizers" if others else ""


def _size(value: Any) -> int:
    """Return the size of the tensors in dicts and lists [bytes]."""
    if isinstance(value, dict | list | tuple):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    return int(value.nbytes) if hasattr(value, "untyped_storage") else 0


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or tuple of changed values."""
    if isinstance(value, dict):
        return {key: change(one) for key, one in value.items()}
    return type(value)(map(change, value))


class LightningPlace:
    """The place of a Trainer in its training.

    Args:
        trainer: the Trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._copies: dict[int, tuple[Any, int, Any]] = {}  # by identity: tensor, version and copy

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the Trainer's checkpoint that is neither weights nor of optimizers."""
        trainer = self._trainer()
        if trainer is None:
            return {}
        loops = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
        states = ((one.state_key, one.state_dict()) for one in trainer.callbacks)
        found = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "loops": {name: getattr(trainer, name).state_dict() for name in loops},
            "callbacks": self._on_cpu({key: state for key, state in states if state}),
        }
        if trainer.datamodule is not None:
            found[type(trainer.datamodule).__qualname__] = trainer.datamodule.state_dict()
        return found

    def _on_cpu(self, states: dict[str, Any]) -> dict[str, Any]:
        """Return states with their tensors on the CPU; a tensor is copied once, as that waits for the GPU."""
        before, self._copies = self._copies, {}

        def copied(value: Any) -> Any:
            if type(value) in {dict, list, tuple}:
                return _rebuilt(value, copied)
            if not hasattr(value, "untyped_storage") or value.device.type == "cpu":
                return value
            version = value._version  # noqa: SLF001 - PyTorch's, for this
            known = before.get(id(value))
            if known is None or known[1] != version:
                known = value, version, value.detach().cpu()
            self._copies[id(value)] = known
            return known[2]

        found: dict[str, Any] = copied(states)
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the Trainer has read it."""


class LightningCheckpoint:
    """Stands in for a strategy's way to read and write checkpoints, and has one of its own.

    Args:
        strategy: of the Trainer.
        path: stands for the checkpoint.
        place: of the Trainer in it.
        version: of Lightning.
    """

    def __init__(self, strategy: Any, path: str, place: dict[str, Any], version: str) -> None:
        self._strategy, self._others = strategy, strategy.checkpoint_io
        self.path = path
        self._place = {**place, "pytorch-lightning_version": version}
        strategy.checkpoint_io = self

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the content of a checkpoint; of this one, with the weights that the module has now."""
        if path != self.path:
            return self._others.load_checkpoint(path, *args, **kwargs)
        weights = self._strategy.lightning_module.state_dict()
        return {**self._place, "state_dict": weights, "optimizer_states": [], "lr_schedulers": []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)

    def end(self) -> None:
        """Give the strategy its own way back."""
        self._strategy.checkpoint_io = self._others


class LightningResume:
    """Has a Trainer keep its state in memory, and go on from one that is there.

    Args:
        trainer: the Trainer.
        memory: of this rank.
        base: the package: ``lightning.pytorch``.
    """

    def __init__(self, trainer: Any, memory: TrainerMemory, base: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self.memory, self._base = memory, base
        self._state: State = {}
        found = memory.find()
        self._checkpoint: LightningCheckpoint | None = None
        if found is not None:
            place, version = found.values[_PLACE], base.__version__
            self._checkpoint = LightningCheckpoint(trainer.strategy, _name(found), place, version)

    @property
    def path(self) -> str | None:
        """The path to resume from; None: the newest checkpoint counts."""
        return None if self._checkpoint is None else self._checkpoint.path

    def is_of(self, trainer: Any) -> bool:
        """Tell whether this is the Trainer, or no state is kept any more."""
        return not self.memory.is_able or self._trainer() is trainer

    def begin(self, trainer: Any) -> bool:
        """Load the state, as all objects are there; return whether there is one in memory.

        Raises:
            InputError: it is of another model, or the Trainer begins at another step.
        """
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.end()
        self._state = _objects(trainer)
        self.memory.load(self._state, trainer.global_step, _CALL)
        reason = content_reason(trainer, self._base)
        if reason:
            self.memory.stop(reason)
        return checkpoint is not None

    def reached(self, step: int) -> None:
        """Take note that a step is complete."""
        self.memory.reached(step, self._state)


def _name(found: MemoryState) -> str:
    return f"the memory of nodes: step {found.step} of round {found.round}"


def _objects(trainer: Any) -> State:
    """Return the objects of a training whose states differ from step to step."""
    module, around = trainer.lightning_module, trainer.strategy.model
    model = around if unwrapped(around) is module else module  # DDP around it tells of its buffers
    state: State = {"model": model, _PLACE: Replicated(LightningPlace(trainer))}
    for number, optimizer in enumerate(trainer.optimizers):
        state[f"optimizer{number}"] = optimizer
    for number, config in enumerate(trainer.lr_scheduler_configs):
        state[f"schedule{number}"] = Replicated(config.scheduler)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return state if scaler is None else {**state, "scaler": Replicated(scaler)}


def resume_of(trainer: Any, base: Any, saves: Saves) -> LightningResume | None:
    """Return the way of a Trainer to go on from memory; None: its states are in files alone.

    Args:
        trainer: the Trainer; its process group is made here.
        base: the package: ``lightning.pytorch``.
        saves: the checkpoints of the run.
    """
    unfit = unfit_reason(trainer.strategy)
    if not unfit:
        trainer.strategy.setup_environment()  # `fit` calls it again, too late to choose a path
    memory = trainer_memory(saves, unfit)
    return None if memory is None else LightningResume(trainer, memory, base)
