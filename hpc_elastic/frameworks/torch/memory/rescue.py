"""The newest state of a training, kept in the node's memory when another rank has failed.

In data-parallel training every rank holds the whole state, and from the end of a step it is the same until
the next step of an optimizer. So a rank whose peers are gone still holds the state of its last whole step. It
is kept if it is shown to be that one (`hpc_elastic.frameworks.torch.memory.proof`). The agent asks for it by
a pipe, which a thread reads while the main thread hangs in a collective; a program that ends by an exception
keeps it at its end.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.frameworks.torch.memory.copies import (
    PRIVATE,
    TOKEN_BYTES,
    Copied,
    OwnFile,
    Rescued,
    Slot,
    check_room,
    found_in,
    one_at_a_time,
    remove,
    remove_others,
    remove_up_to,
)
from hpc_elastic.frameworks.torch.memory.layout import (
    Layout,
    ShardedStateError,
    UnfitStateError,
    Whole,
    without_collections,
)
from hpc_elastic.frameworks.torch.memory.proof import Marks, Noted
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import State, Torch, pickled
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
        channel: the way to the agent; its directory lies in the node's memory, and belongs to the agent.
    """

    def __init__(self, lib: Torch, channel: Channel, place: Rescued) -> None:
        self._lib = lib
        self._channel = channel
        self._place = place
        self.folder = os.path.dirname(channel.path)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._layout: Layout | None = None
        self._hooked: dict[int, Any] = {}  # optimizers by identity, which they keep as long as they are here
        self._marks = Marks[tuple[Whole, Layout]]()
        self._is_in_step = False  # of an optimizer; else a step has been made since the mark
        self._unproven = ""  # why the newest step that was noted is not kept
        self._own = OwnFile(self.folder, place.round, place.rank)
        self._is_over = False
        self._keeps = True
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
            whole, layout = self._noted(step, state)
            self._marks.note((whole, layout), layout.mark())
            self._unproven = ""
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._give_up(error)
            return
        if self._listener is not None and self._keeps:
            self._channel.keeper = self._pid

    def leave_it(self) -> None:
        """Have other ranks keep the state; this one notes its own values."""
        self._keeps, self._channel.keeper = False, 0

    def _give_up(self, error: Exception) -> None:
        self.stop()
        is_copied = isinstance(error, ShardedStateError)  # ahead of faults
        tell_not_kept(str(error), is_news=self._place.rank == 0 and not is_copied)

    def _noted(self, step: int, state: State) -> tuple[Whole, Layout]:
        """Return the notes of the end of a step, and the layout that they are of."""
        layout = self._layout
        whole = layout.note(step) if layout is not None and layout.follows(state) else None
        if layout is None or whole is None:
            with without_collections():
                layout = self._layout = Layout(self._lib, state)  # the notes of before have their own
            for entry in layout.optimizers:
                self._hook(entry.value)
            whole = layout.note(step)
        if whole is None:
            raise UnfitStateError("tensors of the state change while it is looked at")
        if not layout.is_alike:
            self._own.write(step, whole.rest)
        return whole, layout

    def _hook(self, optimizer: Any) -> None:
        """Have an optimizer tell of its steps; that of one which cannot is seen in its parameters."""
        if id(optimizer) not in self._hooked:
            self._hooked[id(optimizer)] = optimizer
            with suppress(AttributeError):  # it was not made by PyTorch's class
                optimizer.register_step_pre_hook(self._begin)
                optimizer.register_step_post_hook(self._end)

    def _end(self, *_: Any) -> None:
        self._is_in_step = False

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
        if self._marks.unchanged is not None:
            with self._lock:  # of `keep`
                pass
        if self._layout is None or self._is_over:
            return
        self._is_in_step = True
        try:
            self._check_before_a_step()
            self._marks.leave(self._layout.mark)
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._give_up(error)

    def _check_before_a_step(self) -> None:
        """Forget a step that was changed since, as a GPU that is behind shows that no more."""
        noted = self._marks.unchanged
        if noted is not None and self._layout is not None and self._layout.device is not None:
            whole, layout = noted.value
            self._unproven = layout.counted(whole)
            if self._unproven:
                self._marks.forget()

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
            while self._keeps and not self._is_over:
                try:
                    why_not = self._kept()
                except Exception as error:  # noqa: BLE001 - the process ends anyway
                    logger.warning("%s: the state was not kept: %s", SAYS, str(error).split("\n", 1)[0])
                    break
                if not why_not:
                    break
                if self._clock.monotonic() >= until:
                    logger.warning("%s: the state was not kept: %s", SAYS, why_not)
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

    def _kept(self) -> str:
        """Keep the state if there is one that is new; return why it is not shown to be whole, if it is not.

        Raises:
            HpcElasticError: it cannot be kept.
            OSError: there is no room for it.
        """
        noted = self._marks.newest()
        if noted is None:
            return self._unproven  # nothing is new, or it was changed
        whole, layout = noted.value
        with layout.aside():
            why_not = self._why_not(noted)
        if why_not:
            return why_not
        place = self._place._replace(step=whole.step, is_alike=layout.is_alike)
        with one_at_a_time(self.folder):
            remove(self.folder, [one for one in os.listdir(self.folder) if one.endswith(PRIVATE)])
            if any(one.round == place.round and one.step >= place.step for one in found_in(self.folder)):
                return ""  # another rank of this node has it
            check_room(self.folder, layout.size())
            began = self._clock.monotonic()
            why_not = self._written(place, noted)
            if why_not:
                return why_not
        took_s = self._clock.monotonic() - began
        what = f"the state of step {place.step} is kept in this node's memory"
        logger.warning("%s: %s, in %.3f s", SAYS, what, took_s)
        return ""

    def _why_not(self, noted: Noted[tuple[Whole, Layout]]) -> str:
        """Return why a state is not shown to be that of its step; empty: it is."""
        whole, layout = noted.value
        if noted.is_whole():
            return layout.changed(whole, is_left=noted.left is not None)
        if self._is_in_step:
            return "an optimizer was in the middle of a step"
        return f"an optimizer had made the step after step {whole.step}, and the loop had not told its end"

    def _written(self, place: Rescued, noted: Noted[tuple[Whole, Layout]]) -> str:
        """Write the state to its file; return why it was not whole until it was written, if it was not.

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
                why_not = self._why_not(noted)
            if why_not:
                return why_not
            layout.check({piece.name: slot.view(piece) for piece in content.pieces})
            slot.seal(Copied("", "00" * TOKEN_BYTES, *place[:4], end), values_at)
            os.rename(slot.path, path)
        finally:
            slot.remove()
        return ""


def tell_not_kept(reason: str, *, is_news: bool) -> None:
    """Tell why a fault costs the work since the newest checkpoint; `is_news`: the user is to see it."""
    level = logging.WARNING if is_news else logging.INFO
    logger.log(level, "%s: the state is not kept when another rank fails: %s", SAYS, reason)


def new_rescue(lib: Torch, ranks: RankGroups, environ: Mapping[str, str]) -> Rescue | None:
    """Return the rescue of this rank; None without an agent."""
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
