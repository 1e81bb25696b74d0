"""The newest state of a training, kept in the node's memory when another rank has failed.

In data-parallel training every rank holds the whole state, and it changes only in a step of an optimizer. So
a rank whose peers are gone still holds the state of its last whole step. The agent asks for it by a pipe,
which a thread reads while the main thread hangs in a collective; a program that ends by an exception keeps it
at its end. `hpc_elastic.frameworks.torch.memory.rescued` finds the states again.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import threading
from collections.abc import Mapping
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.frameworks.torch.memory.copies import TOKEN_BYTES, Copied, Slot
from hpc_elastic.frameworks.torch.memory.layout import (
    Layout,
    ShardedStateError,
    UnfitStateError,
    Whole,
    versions,
    without_parameters,
)
from hpc_elastic.frameworks.torch.memory.marks import Marks, Noted
from hpc_elastic.frameworks.torch.memory.rescued import (
    PRIVATE,
    OwnFile,
    Rescued,
    check_room,
    found_in,
    one_at_a_time,
    remove_others,
    remove_unfinished,
    remove_up_to,
)
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import (
    State,
    Torch,
    TrainState,
    pickled,
)
from hpc_elastic.ids import Env
from hpc_elastic.worker.channel import Channel, ChannelError
from hpc_elastic.worker.request_pipe import heed

logger = logging.getLogger(__name__)
TORN_S = 4.0  # for a step of an optimizer to end
_LOOK_S = 0.01
SAYS = "hpc_elastic.frameworks.torch"  # before each line on stderr: it is no reason to end


class Rescue:
    """Keeps the newest whole state of this rank, when the agent asks for it or the program fails.

    Args:
        lib: PyTorch's modules.
        channel: the way to the agent; its directory lies in the node's memory, and belongs to the agent.
        place: round, rank and number of ranks.
    """

    def __init__(self, lib: Torch, channel: Channel, place: Rescued) -> None:
        self._lib = lib
        self._channel = channel
        self._place = place
        self.folder = os.path.dirname(channel.path)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._known: tuple[int, ...] = ()  # objects and sizes of groups that the layout is of
        self._layout: Layout | None = None
        self._hooked: dict[int, Any] = {}  # optimizers by identity, which they keep as long as they are here
        self._marks = Marks[tuple[Whole, Layout]]()
        self._has_stepped = False  # an optimizer has told of a step
        self._own = OwnFile(self.folder, place.round, place.rank)
        self._is_over = False
        self._pid = os.getpid()  # children of this process keep nothing
        self._listener = heed(channel, self.keep)
        atexit.register(self._at_end)

    def began(self, state: Rescued | None) -> None:
        """Take note that a state was loaded: nothing is new yet.

        Args:
            state: that a rank has kept; None: a checkpoint was loaded, or nothing.
        """
        self._marks.forget()
        remove_others(self.folder, state)

    def saved(self, step: int) -> None:
        """Take note that a checkpoint is durable."""
        remove_up_to(self.folder, step)

    def reached(self, step: int, state: State) -> None:
        """Take note that a step is complete."""
        if self._is_over:
            return
        try:
            if self._layout is not None:
                self._marks.leave(self._layout.mark)  # the values beside the tensors change now
            self._marks.wait()
            train = TrainState(self._lib, state)
            layout = self._layout_of(train)
            self._marks.note((self._note(step, train, layout), layout), layout.mark())
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._give_up(error)
            return
        if self._listener is not None:
            self._channel.keeper = self._pid

    def _give_up(self, error: Exception) -> None:
        self.stop()
        is_copied = isinstance(error, ShardedStateError)  # ahead of faults
        tell_not_kept(str(error), is_news=self._place.rank == 0 and not is_copied)

    def _note(self, step: int, state: TrainState, layout: Layout) -> Whole:
        fixed, numbers = layout.note()
        rest = pickle.dumps(layout.rest(state))
        groups = {one.name: without_parameters(one.value) for one in layout.optimizers}
        if not layout.is_alike:
            self._own.write(step, rest)
        return Whole(step, groups, rest, fixed, numbers, layout.on_host())

    def _layout_of(self, state: TrainState) -> Layout:
        torch = self._lib.torch
        kinds = torch.nn.Module | torch.optim.Optimizer | torch.Tensor
        objects = [one.value for one in state.entries if isinstance(one.value, kinds)]
        groups = [one.param_groups for one in objects if isinstance(one, torch.optim.Optimizer)]
        sizes = [
            len(group["params"]) for found in groups for group in found
        ]  # they grow as layers are unfrozen
        known = (*map(id, objects), *sizes)
        if self._layout is None or known != self._known or not self._layout.read():
            self._layout, self._known = Layout(self._lib, state), known  # the notes of before have their own
            for entry in self._layout.optimizers:
                if id(entry.value) not in self._hooked:
                    entry.value.register_step_pre_hook(self._begin)
                    self._hooked[id(entry.value)] = entry.value
        return self._layout

    def _begin(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take note that an optimizer begins a step: after its closure, which computes the gradients.

        Returns:
            New arguments of the step, or None.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or not steps_as_torch(optimizer):
            self._leave()
            return None

        def compute() -> Any:
            loss = closure()
            self._leave()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": compute}
        return (args[0], compute, *args[2:]), kwargs

    def _leave(self) -> None:
        """Take note that tensors change from here on, after the state is kept if that is under way.

        The other ranks may still be there: then steps follow each other faster than a large state is written.
        """
        if self._marks.is_unchanged:
            with self._lock:  # of `keep`
                pass
        if self._layout is None or self._is_over:
            return
        self._has_stepped = True
        try:
            self._marks.leave(self._layout.mark)
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._give_up(error)

    @property
    def is_able(self) -> bool:
        """Whether the state is kept when another rank fails."""
        return self._listener is not None and not self._is_over

    def stop(self) -> None:
        """Keep nothing from now on: the loop was left, or the state is of no such kind."""
        self._is_over = True
        self._channel.keeper = 0

    def keep(self, wait_s: float = TORN_S) -> None:
        """Keep the state, once.

        Args:
            wait_s: for a step of an optimizer that is under way [s].
        """
        with self._lock:
            until = self._clock.monotonic() + wait_s
            while not self._is_over:
                try:
                    is_torn = not self._kept()
                except Exception as error:  # noqa: BLE001 - the process ends anyway
                    logger.warning("%s: the state was not kept: %s", SAYS, str(error).split("\n", 1)[0])
                    break
                if not is_torn:
                    break
                if self._clock.monotonic() >= until:
                    why = "an optimizer was in the middle of a step"
                    logger.warning("%s: the state was not kept: %s", SAYS, why)
                    break
                self._clock.sleep(_LOOK_S)
            self.stop()

    def _at_end(self) -> None:
        """Keep the state of a program that has failed; one that has come to its end has no process group.

        That of a training which the program has given up for another one is not kept.
        """
        if self._listener is not None and self._listener.act != self.keep:
            return
        if self._lib.distributed.is_initialized() and os.getpid() == self._pid:
            is_behind = self._layout is not None and self._layout.device is not None
            self.keep(TORN_S if is_behind else 0.0)

    def _kept(self) -> bool:
        """Keep the state if there is one that is new; return whether it was whole.

        Raises:
            HpcElasticError: it cannot be kept.
            OSError: there is no room for it.
        """
        noted = self._marks.newest()
        if noted is None:
            return True  # nothing is new
        whole, layout = noted.value
        if layout.device is not None and not self._has_stepped:
            raise UnfitStateError("no step of an optimizer was noticed")
        if not _is_whole(noted):
            return False
        place = self._place._replace(step=whole.step, is_alike=layout.is_alike)
        with one_at_a_time(self.folder):
            remove_unfinished(self.folder)
            if any(one.round == place.round and one.step >= place.step for one in found_in(self.folder)):
                return True  # another rank of this node has it
            check_room(self.folder, layout.size())
            began = self._clock.monotonic()
            if not self._written(place, noted):
                return False
        took_s = self._clock.monotonic() - began
        what = f"the state of step {place.step} is kept in this node's memory"
        logger.warning("%s: %s, in %.3f s", SAYS, what, took_s)
        return True

    def _written(self, place: Rescued, noted: Noted[tuple[Whole, Layout]]) -> bool:
        """Write the state to its file; return whether it was whole until it was written.

        Raises:
            UnfitStateError: it has parameters that are not finite.
            OSError: there is no room for it.
        """
        whole, layout = noted.value
        path = os.path.join(self.folder, place.file_name)
        slot = Slot(self._lib, f"{path}{PRIVATE}")
        try:
            with layout.aside():
                tensors, own = layout.content(whole)
                content, values_at, end = slot.write(tensors, pickled(self._lib, own))
            if not _is_whole(noted):
                return False
            layout.check({piece.name: slot.view(piece) for piece in content.pieces})
            slot.seal(Copied("", "00" * TOKEN_BYTES, *place[:4], end), values_at)
            os.rename(slot.path, path)
        finally:
            slot.remove()
        return True


def tell_not_kept(reason: str, *, is_news: bool) -> None:
    """Tell that a fault costs the work since the newest checkpoint.

    Args:
        reason: for it.
        is_news: the user is to see it.
    """
    level = logging.WARNING if is_news else logging.INFO
    logger.log(level, "%s: the state is not kept when another rank fails: %s", SAYS, reason)


def new_rescue(lib: Torch, ranks: RankGroups, environ: Mapping[str, str]) -> Rescue | None:
    """Return the rescue of this rank; None without an agent.

    Args:
        lib: PyTorch's modules.
        ranks: this rank among all.
        environ: of this process.
    """
    path, run_dir = environ.get(Env.CHANNEL), environ.get(Env.RUN_DIR)
    if not path or not run_dir:
        return None
    try:
        channel = Channel.open(path)
    except (OSError, ChannelError):
        return None  # `hpc_elastic.worker` tells of it
    place = Rescued(int(environ.get(Env.ROUND) or 0), 0, ranks.rank, ranks.size)
    return Rescue(lib, channel, place)


def steps_as_torch(optimizer: Any) -> bool:
    """Tell whether an optimizer has PyTorch's step.

    That changes tensors nowhere else, and nothing before its closure has returned.
    """
    return getattr(type(optimizer).step, "__module__", "").startswith("torch.optim.")


def _is_whole(noted: Noted[tuple[Whole, Layout]]) -> bool:
    whole, _ = noted.value
    return noted.is_whole() and versions(whole.fixed.values()) == whole.versions
