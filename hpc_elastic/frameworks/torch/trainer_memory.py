"""The newest state of a Trainer in the memory of nodes, where a framework saves the checkpoints itself.

A Trainer computes its place in the data before any of its hooks runs, and makes its optimizers after that. So
a state is found first, with the values that the place follows from; its tensors are loaded when the objects
are there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.bases import has_several
from hpc_elastic.frameworks.torch.memory.copies import OwnFile, Rescued, owns_in
from hpc_elastic.frameworks.torch.memory.node_memory import NodeMemory, RoundStart, Source
from hpc_elastic.frameworks.torch.memory.rescue import tell_not_kept
from hpc_elastic.frameworks.torch.optimizer_state import ending_the_run
from hpc_elastic.frameworks.torch.rank_groups import RankGroups, rank_groups
from hpc_elastic.frameworks.torch.train_state import State, Torch, TrainState, load_torch, unpickled
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple

if TYPE_CHECKING:
    from hpc_elastic.frameworks.saving import Saves

logger = logging.getLogger(__name__)


class MemoryState(NamedTuple):
    """A state in memory that all ranks are to go on from.

    Attributes:
        step: steps completed in it.
        round: that has kept it.
        values: its values outside tensors, by the names of the objects.
        own: this rank's own values after that step; None: they are lost, or there is another number of ranks.
    """

    step: int
    round: int
    values: Mapping[str, Any]
    own: bytes | None


class TrainerMemory:
    """Keeps the newest state of a Trainer in its node's memory when another rank fails.

    All ranks make one, and make the same calls in the same order.
    """

    def __init__(
        self, lib: Torch, ranks: RankGroups, saves: Saves, run_dir: str, environ: Mapping[str, str]
    ) -> None:
        self._lib, self._ranks, self._saves, self._run_dir = lib, ranks, saves, run_dir
        self._memory = NodeMemory(lib, ranks, environ, rescue=True, copies=False)
        rescue = self._memory.rescue
        self._own = None if rescue is None else OwnFile(rescue.folder, saves.round, ranks.rank, files=3)
        self._noted = (0, b"")  # the values of this rank that are written, with their step
        self._found: Source | None = None

    def find(self) -> MemoryState | None:
        """Return the newest state, if it is in memory and newer than the newest checkpoint."""
        saved = worker.latest_checkpoint()
        step = 0 if saved is None else saved.step
        start = RoundStart(self._saves.round, self._saves.directory, step, self._run_dir, lambda: step)
        found = self._memory.find(start)
        if found is None:
            return None
        data = found.owns()
        mine = data if isinstance(data, bytes) else data[0]
        self._found = found
        return MemoryState(
            found.state.step, found.state.round, unpickled(self._lib, mine), self._own_of(found.state)
        )

    def _own_of(self, state: object) -> bytes | None:
        """Return the values of this rank that belong to a state."""
        rescue, found = self._memory.rescue, dict[int, bytes]()
        if rescue is not None and isinstance(state, Rescued):
            found = owns_in(rescue.folder, state)
        there = {rank: own for owns in self._ranks.all_told(found) for rank, own in owns.items()}
        is_same = isinstance(state, Rescued) and state.world_size == self._ranks.size
        return there.get(self._ranks.rank) if is_same else None

    def load(self, state: State, step: int, call: str) -> None:
        """Give the objects the state that was found; the Trainer begins at `step`, by a `call` for people.

        Raises:
            InputError: it is of another model, or the Trainer begins at another step.
        """
        if self._found is not None:
            if step != self._found.state.step:
                raise InputError(
                    f"the training begins at step {step}, but newest() has returned the path of step "
                    f"{self._found.state.step}",
                    where="newest(trainer)",
                    fix=f"give the training the path that newest() returns, and no other one: {call}",
                )
            with ending_the_run():
                TrainState(self._lib, state).load(self._found)
            worker.resumed(self._found.state.step)
            self._found = None

    def reached(self, step: int, state: State) -> None:
        """Take note that a step is complete; the state is the same on all ranks."""
        self._memory.reached(step, state)

    def note_own(self, step: int, own: bytes) -> None:
        """Take note of the values of this rank alone, without which a state is still loaded.

        The state of the step that they belong to may be noted later.
        """
        if self._own is None or not self.is_able or (step, own) == self._noted:
            return
        self._noted = step, own
        try:
            self._own.write(step, own)
        except OSError as error:
            self._own = None
            logger.info("the values of single ranks are not kept when another one fails: %s", error)

    @property
    def is_able(self) -> bool:
        """Whether the state is kept when another rank fails."""
        return self._memory.rescue is not None and self._memory.rescue.is_able

    def saved(self, step: int) -> None:
        """Take note that this rank's part of a checkpoint is durable, and wait for those of all ranks."""
        self._ranks.all_told(None)
        self._memory.saved(step)

    def keep(self) -> None:
        """Keep the newest whole state now, as the program is about to change or leave it."""
        if self._memory.rescue is not None:
            self._memory.rescue.keep()

    def stop(self, unfit: str = "") -> None:
        """Keep nothing from now on.

        Args:
            unfit: the reason for which the states are in files alone; empty: the training is over.
        """
        self._memory.stop()
        if unfit:
            tell_not_kept(unfit, is_news=self._ranks.rank == 0)
        else:
            self._ranks.rest()


def trainer_memory(
    saves: Saves, unfit: str, environ: Mapping[str, str] | None = None
) -> TrainerMemory | None:
    """Return the memory for a Trainer; None without an agent.

    All ranks call it, after the Trainer has made its process group.

    Args:
        saves: the checkpoints of the run.
        unfit: the reason for which the Trainer's states are in files alone; empty: there is none.
        environ: of this process.
    """
    environ = os.environ if environ is None else environ
    run_dir = worker.run_dir()
    if run_dir is None or Env.CHANNEL not in environ:
        return None
    if has_several():
        unfit = "the program trains several times, and the states of two trainings could be taken for another"
    if unfit:
        tell_not_kept(unfit, is_news=environ.get("RANK") == "0")
        return None
    lib = load_torch()
    ranks = rank_groups(lib, environ, saves=False)
    return TrainerMemory(lib, ranks, saves, run_dir, environ)
