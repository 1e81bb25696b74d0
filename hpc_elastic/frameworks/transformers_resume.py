"""How Hugging Face's Trainer goes on from a state in the memory of nodes.

The Trainer reads ``trainer_state.json`` and ``rng_state_*.pth`` of the directory that it resumes from (the
names are those of its own checkpoints). A directory with these two alone is made for it; weights, optimizer
and schedule come from memory.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import random
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

from hpc_elastic.frameworks.torch.memory.rescue import steps_as_torch
from hpc_elastic.frameworks.torch.train_state import Replicated, State
from hpc_elastic.frameworks.torch.trainer_memory import MemoryState, TrainerMemory, trainer_memory
from hpc_elastic.frameworks.torch.trees import unwrapped

if TYPE_CHECKING:
    from hpc_elastic.frameworks.saving import Saves

_PLACE = "trainer"  # the name of the Trainer's place in a state
_CALL = "trainer.train(resume_from_checkpoint=elastic.newest(trainer))"

_CUT = ("is_deepspeed_enabled", "is_fsdp_enabled", "is_distributed_loading_by_transformers")
_OWN_WAYS = (  # of the Trainer, to save and load; a subclass may save more, which a state in memory lacks
    "_save_checkpoint",
    "_save_optimizer_and_scheduler",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
)


def unfit_reason(trainer: Any) -> str:
    """Return the reason for which no rank of a Trainer can keep its state alone; empty: there is none."""
    if any(getattr(trainer, name, False) for name in _CUT):
        return "DeepSpeed, FSDP and tensor parallelism cut it into parts"
    base = importlib.import_module("transformers").Trainer
    for name in _OWN_WAYS:
        if getattr(type(trainer), name, None) is not getattr(base, name, None) or not hasattr(base, name):
            return f"{type(trainer).__name__} has a {name} of its own"
    if trainer.args.auto_find_batch_size:
        return "auto_find_batch_size may begin again with other batches"
    return ""


class TransformersPlace:
    """The place of a Trainer in its training, and its log.

    Args:
        trainer: the Trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._log = (0, b"[]")  # its length, and as JSON: it grows, and rarely

    def state_dict(self) -> dict[str, Any]:
        """Return the Trainer's state, as it stands in its checkpoints."""
        trainer = self._trainer()
        if trainer is None:
            return {}
        state = trainer.state
        history = state.log_history
        if len(history) != self._log[0]:
            self._log = len(history), json.dumps(history).encode()
        values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
        values |= {"log_history": [], "stateful_callbacks": _callbacks(trainer)}
        return {"state": json.dumps(values), "log": self._log[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the Trainer has read it."""


def _callbacks(trainer: Any) -> dict[str, Any]:
    """Return the states of callbacks by the names of their classes, a list where there are several of one."""
    exportable = importlib.import_module("transformers.trainer_callback").ExportableState
    found: dict[str, Any] = {}
    for one in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(one, exportable):
            found.setdefault(type(one).__name__, []).append(one.state())
    return {name: states[0] if len(states) == 1 else states for name, states in found.items()}


def random_states() -> bytes:
    """Return the states of the generators that the Trainer saves."""
    torch, numpy = importlib.import_module("torch"), importlib.import_module("numpy")
    states = {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state_all()
    return pickle.dumps(states)


class TransformersCheckpoint:
    """A directory that stands for a state in memory, as long as the Trainer resumes from it.

    Args:
        trainer: the Trainer; it loads no weights from the directory.
        found: the state.
    """

    def __init__(self, trainer: Any, found: MemoryState) -> None:
        self._trainer = weakref.ref(trainer)
        self._directory = tempfile.TemporaryDirectory(prefix="hpc-elastic-")
        self.path = self._directory.name
        place = found.values[_PLACE]
        state = {**json.loads(place["state"]), "log_history": json.loads(place["log"])}
        with open(os.path.join(self.path, "trainer_state.json"), "x") as file:
            json.dump(state, file, indent=2, sort_keys=True)
        if found.own is not None:
            torch = importlib.import_module("torch")
            torch.save(pickle.loads(found.own), self._random_file(trainer.args))  # noqa: S301 - of this run
        load = trainer._load_from_checkpoint  # noqa: SLF001 - there is no other way to have it load none

        def load_others(path: str, *args: Any, **kwargs: Any) -> None:
            if path != self.path:
                load(path, *args, **kwargs)

        trainer._load_from_checkpoint = load_others  # noqa: SLF001

    def _random_file(self, args: Any) -> str:
        name = f"rng_state_{args.process_index}.pth" if args.world_size > 1 else "rng_state.pth"
        return os.path.join(self.path, name)

    def end(self) -> None:
        """Remove the directory; the Trainer has resumed."""
        trainer = self._trainer()
        if trainer is not None:
            del trainer._load_from_checkpoint  # noqa: SLF001
        self._directory.cleanup()


class TransformersResume:
    """Has a Trainer keep its state in memory, and go on from one that is there.

    Args:
        trainer: the Trainer.
        memory: of this rank.
    """

    def __init__(self, trainer: Any, memory: TrainerMemory) -> None:
        self._trainer = weakref.ref(trainer)
        self.memory = memory
        self._state: State = {}
        found = memory.find()
        self._checkpoint = None if found is None else TransformersCheckpoint(trainer, found)

    @property
    def path(self) -> str | None:
        """The directory to resume from; None: the newest checkpoint counts."""
        return None if self._checkpoint is None else self._checkpoint.path

    def is_of(self, state: Any) -> bool:
        """Tell whether a state is that of the Trainer, or none is kept any more."""
        trainer = self._trainer()
        return not self.memory.is_able or (trainer is not None and trainer.state is state)

    def begin(self, step: int, model: Any, optimizer: Any, scheduler: Any) -> None:
        """Load the state, as all objects are there.

        Args:
            step: at which the Trainer begins.
            model: of the Trainer.
            optimizer: of the Trainer.
            scheduler: of the Trainer.

        Raises:
            InputError: it is of another model, or the Trainer begins at another step.
        """
        trainer = self._trainer()
        if trainer is None:
            return
        optimizer, around = unwrapped(optimizer), trainer.model_wrapped
        model = around if unwrapped(around) is model else model  # DDP around it tells of its buffers
        self._state = {"model": model, "optimizer": optimizer, "lr_scheduler": Replicated(scheduler)}
        scaler = getattr(trainer.accelerator, "scaler", None)
        if scaler is not None:
            self._state["scaler"] = Replicated(scaler)
        self._state[_PLACE] = Replicated(TransformersPlace(trainer))
        self.memory.load(self._state, step, _CALL)
        if not steps_as_torch(optimizer):
            self.memory.stop(f"{type(optimizer).__name__} may not step as PyTorch's optimizers")

    def end(self) -> None:
        """Keep nothing from now on."""
        self.memory.stop()
        self._resumed()

    def stepping(self, step: int) -> None:
        """Take note of the random states after a step, as the optimizer begins it.

        A rank that is killed from here on may leave another one that has completed the step.
        """
        if self.memory.is_able:
            self.memory.note_own(step, random_states())

    def reached(self, step: int) -> None:
        """Take note that a step is complete."""
        self.memory.reached(step, self._state)
        if self.memory.is_able:
            self.memory.note_own(step, random_states())
        self._resumed()

    def _resumed(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.end()
            self._checkpoint = None


def resume_of(trainer: Any, saves: Saves) -> TransformersResume | None:
    """Return the way of a Trainer to go on from memory; None: its states are in files alone."""
    memory = trainer_memory(saves, unfit_reason(trainer))
    return None if memory is None else TransformersResume(trainer, memory)
