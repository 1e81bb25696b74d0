"""The newest state of a training, kept in the node's memory when another rank has failed.

In data-parallel training every rank holds the whole state, and it changes only in a step of an optimizer. So
a rank whose peers are gone still holds the state of its last whole step. The agent asks for it by a signal,
which a thread here heeds while the main thread hangs in a collective; a program that ends by an exception
keeps it at its end. Counters of batch norms, schedules and loaders change outside optimizers and are small:
they are copied after each step. A GPU may be behind its program, and its state is copied on a stream of its
own, beside work that hangs. `hpc_elastic.frameworks.torch.rescued` finds the states again.
"""

from __future__ import annotations

import atexit
import copy
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.frameworks.torch.marks import DeviceMark, HostMark, Marks, Noted
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.rescued import (
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
from hpc_elastic.frameworks.torch.train_state import (
    Entry,
    Replicated,
    State,
    Torch,
    TrainState,
    leaves,
    pickled,
)
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.worker.channel import Channel, ChannelError

logger = logging.getLogger(__name__)
ASKED_BY = signal.SIGURG  # by default a process ignores it, so the children of a worker may get it
TORN_S = 4.0  # for a step of an optimizer to end
_SMALL = 1 << 16  # bytes of a tensor that is copied after each step
_SMALL_SUM = 1 << 22  # of all of them
_LOOK_S = 0.01
SAYS = "hpc_elastic.frameworks.torch"  # before each line on stderr: it is no reason to end


class UnfitStateError(HpcElasticError):
    """A state cannot be rescued."""


class ShardedStateError(UnfitStateError):
    """No rank holds the whole state."""


class Whole(NamedTuple):
    """The end of a step: from here on the state is whole until an optimizer begins its next step.

    Attributes:
        step: steps completed.
        groups: by optimizer, the values of its groups of parameters.
        rest: the values of this rank outside modules, optimizers and tensors; pickled.
        versions: of the tensors that must not have changed since.
        on_host: with a state on a GPU, the values of it that are not there, by name.
    """

    step: int
    groups: dict[str, list[dict[str, Any]]]
    rest: bytes
    versions: list[int]
    on_host: dict[str, Any]


class Layout:
    """The tensors of a training, by the way in which they change; made once.

    Args:
        lib: PyTorch's modules.
        state: of the training.

    Raises:
        UnfitStateError: not every rank holds the whole state, or it is of a kind that is not known.
    """

    def __init__(self, lib: Torch, state: TrainState) -> None:
        self._lib = lib
        self._state = state
        self.optimizers = [one for one in state.entries if isinstance(one.value, lib.torch.optim.Optimizer)]
        found, own = state.parts()
        self._tensors = {name: value for name, value in found.items() if self._is_outside_optimizers(name)}
        self.device = self._device_of(found)
        self._stream = None if self.device is None else lib.torch.cuda.Stream(self.device)
        self._names = {one.name: self._named(one) for one in self.optimizers}
        self._stepped = {
            self._module_of(one) + name: parameter
            for one in self.optimizers
            for parameter, name in self._names[one.name].items()
        }
        others = {name: tensor for name, tensor in self._tensors.items() if name not in self._stepped}
        small, self._fixed = _by_size(others)
        self._copied = {name: tensor for name, tensor in small.items() if self._is_here(tensor)}
        self._beside = {name: tensor for name, tensor in small.items() if name not in self._copied}
        self._states: list[Any] = []  # of the optimizers
        self._known: list[tuple[int, int]] = []
        self._optimized: list[tuple[str, dict[str, Any], str]] = []
        self._copies = [tensor.detach().clone() for tensor in self._copied.values()]
        if self._content().keys() != found.keys():
            raise UnfitStateError("the optimizer's state has other names than those that PyTorch gives it")
        self.is_alike = all(self._is_alike(one) for one in state.entries if one.name in own)

    def _is_outside_optimizers(self, name: str) -> bool:
        return not any(name.startswith(f"{one.name}.") for one in self.optimizers)

    def _device_of(self, found: dict[str, Any]) -> Any:
        """Return the GPU that the state is on; None for the CPU.

        Raises:
            UnfitStateError: no rank holds the whole state, or it is on devices that are not known.
        """
        devices: dict[Any, str] = {}
        for name, value in found.items():
            if not isinstance(value, self._lib.torch.Tensor):
                continue
            if hasattr(value, "full_tensor"):
                raise ShardedStateError(f"{name} is sharded: no rank holds the whole state")
            devices.setdefault(value.device, name)
        for device, name in devices.items():
            if device.type not in {"cpu", "cuda"}:
                raise UnfitStateError(f"{name} is on {device}: a state there is not rescued")
        gpus = [device for device in devices if device.type == "cuda"]
        if len(gpus) > 1:
            raise UnfitStateError(f"{devices[gpus[1]]} is on {gpus[1]}, and others are on {gpus[0]}")
        return gpus[0] if gpus else None

    def _is_here(self, value: Any) -> bool:
        """Tell whether a value is a tensor on the device of the state."""
        is_tensor = isinstance(value, self._lib.torch.Tensor)
        return is_tensor and (self.device is None or value.device == self.device)

    def mark(self) -> DeviceMark:
        """Return a mark at this place of the work on the state's device.

        Raises:
            UnfitStateError: the work is recorded for later.
        """
        if self.device is None:
            return HostMark()
        cuda = self._lib.torch.cuda
        if cuda.is_current_stream_capturing():
            raise UnfitStateError("an optimizer is captured in a CUDA graph, so its steps are not noticed")
        event = cuda.Event(blocking=True)
        event.record(cuda.current_stream(self.device))
        mark: DeviceMark = event
        return mark

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Have this thread work on a stream of its own, as that of the program may hang."""
        if self.device is None:
            yield
            return
        with self._lib.torch.cuda.device(self.device), self._lib.torch.cuda.stream(self._stream):
            yield

    def on_host(self) -> dict[str, Any]:
        """Return copies of the values beside the GPU: they change while the GPU is not as far."""
        if self.device is None:
            return {}
        states = [one.value.state for one in self.optimizers]
        known = [(id(state), len(state)) for state in states]  # loading puts another one in its place
        if self._known != known:
            self._states, self._known, self._optimized = states, known, self._optimized_on_host()
        found = {name: _noted(value) for name, value in self._beside.items()}
        for name, state, key in self._optimized:
            found[name] = _noted(state[key])
        return found

    def _optimized_on_host(self) -> list[tuple[str, dict[str, Any], str]]:
        """Return name and place of the values that optimizers keep beside the GPU, as counts of steps."""
        return [
            (f"{one.name}.state.{self._names[one.name][parameter]}.{key}", state, key)
            for one in self.optimizers
            for parameter, state in one.value.state.items()
            for key, value in state.items()
            if not self._is_here(value)
        ]

    def _named(self, entry: Entry) -> dict[Any, str]:
        """Return the names of an optimizer's parameters in its module, the first ones as in PyTorch."""
        places = dict[int, str]()
        for name, tensor in self._tensors.items():
            if name.startswith(self._module_of(entry)):
                places.setdefault(tensor.data_ptr(), name.removeprefix(self._module_of(entry)))
        parameters = [parameter for group in entry.value.param_groups for parameter in group["params"]]
        if any(parameter.data_ptr() not in places for parameter in parameters):
            raise UnfitStateError(f"a parameter of the optimizer {entry.name!r} is not in its module's state")
        return {parameter: places[parameter.data_ptr()] for parameter in parameters}

    def _module_of(self, entry: Entry) -> str:
        """Return the beginning of the names of an optimizer's parameters."""
        module = self._state.model_of(entry)
        return next(f"{one.name}." for one in self._state.entries if one.value is module)

    def _is_alike(self, entry: Entry) -> bool:
        """Tell by its kind whether the values of an object are the same on all ranks."""
        torch = self._lib.torch
        kinds = (
            torch.optim.Optimizer,
            torch.optim.lr_scheduler.LRScheduler,
            torch.amp.GradScaler,
            Replicated,
        )
        return isinstance(entry.value, kinds)

    def rest(self, state: TrainState) -> dict[str, Any]:
        """Return the values of this rank outside modules, optimizers and tensors."""
        torch = self._lib.torch
        kinds = torch.nn.Module | torch.optim.Optimizer | torch.Tensor
        values = {one.name: one.value for one in state.entries if not isinstance(one.value, kinds)}
        return {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in values.items()
        }

    def note(self) -> list[int]:
        """Copy the small tensors outside optimizers; return the versions of the large ones."""
        with self._lib.torch.no_grad():
            if self._copies:
                self._lib.torch._foreach_copy_(self._copies, list(self._copied.values()))
        return self.versions()

    def versions(self) -> list[int]:
        """Return the versions of tensors that should not change outside optimizers."""
        return [tensor._version for tensor in self._fixed.values()]  # noqa: SLF001 - PyTorch's, for this

    def content(self, whole: Whole) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors and values of a whole state, on the CPU; there the tensors are the training's.

        Raises:
            UnfitStateError: parameters lie elsewhere than before, or are not finite.
        """
        for name, parameter in self._stepped.items():
            if parameter.data_ptr() != self._tensors[name].data_ptr():
                raise UnfitStateError(f"{name} was replaced by another tensor")
        tensors = {**self._content(), **dict(zip(self._copied, self._copies, strict=True))}
        for name, noted in whole.on_host.items():
            is_number = hasattr(tensors[name], "dim") and not hasattr(noted, "dim")
            tensors[name] = self._lib.torch.full_like(tensors[name], noted) if is_number else noted
        if self.device is not None:
            tensors = self._fetched(tensors, whole)
        for name in self._stepped:
            if not bool(self._lib.torch.isfinite(tensors[name]).all()):
                raise UnfitStateError(f"{name} is not finite")
        own = {one.name: self._groups(one, whole.groups[one.name]) for one in self.optimizers}
        return tensors, {**own, **pickle.loads(whole.rest)}  # noqa: S301 - of this process

    def _fetched(self, tensors: dict[str, Any], whole: Whole) -> dict[str, Any]:
        """Return copies on the CPU, made while other work on the GPU may hang.

        Memory that is pinned or on the GPU is not asked for, as the driver may wait for that work.

        Raises:
            UnfitStateError: a value beside the GPU was not noted.
        """
        torch, copies = self._lib.torch, dict[Any, Any]()
        found = {}
        with torch.no_grad():
            for name, value in tensors.items():
                if not self._is_here(value):
                    if name not in whole.on_host and name not in self._fixed:
                        raise UnfitStateError(f"{name} is not on {self.device}")
                    found[name] = value
                    continue
                place = value.data_ptr(), value.dtype, value.size(), value.stride()
                if place not in copies:
                    copies[place] = torch.empty_like(value, device="cpu").copy_(value)
                found[name] = copies[place]
        return found

    def _groups(self, entry: Entry, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups of an optimizer's parameters, which are named in them."""
        names = self._names[entry.name]
        return [
            {**group, "params": [names[parameter] for parameter in live["params"]]}
            for group, live in zip(values, entry.value.param_groups, strict=True)
        ]

    def size(self) -> int:
        """Return the size of all tensors [bytes]."""
        return sum(map(_size, self._content().values()))

    def _content(self) -> dict[str, Any]:
        """Return all tensors by name, with the state of optimizers as it is now."""
        found = dict(self._tensors)
        for entry in self.optimizers:
            names = self._names[entry.name]
            for parameter, state in entry.value.state.items():
                tree = {"state": {names[parameter]: dict(state)}}
                found.update((leaf.name, leaf.value) for leaf in leaves(tree, entry.name))
        return found


def _by_size(tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors that are small enough to be copied after each step, and the others."""
    small, large, total = dict[str, Any](), dict[str, Any](), 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() if hasattr(tensor, "numel") else _SMALL + 1
        if size > _SMALL or total + size > _SMALL_SUM:
            large[name] = tensor
        else:
            small[name], total = tensor, total + size
    return small, large


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
        self._known: tuple[int, ...] = ()  # the objects that the layout is of
        self._layout: Layout | None = None
        self._hooked: dict[int, Any] = {}  # optimizers by identity, which they keep as long as they are here
        self._marks = Marks[Whole]()
        self._has_stepped = False  # an optimizer has told of a step
        self._own = OwnFile(self.folder, place.round, place.rank)
        self._is_over = False
        self._pid = os.getpid()  # children of this process keep nothing
        self._is_asked = heed(self.keep)
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
            self._marks.note(self._note(step, train, layout), layout.mark())
        except Exception as error:  # noqa: BLE001 - the training does not fail for it
            self._give_up(error)
            return
        if self._is_asked:
            self._channel.rescue_signal = ASKED_BY

    def _give_up(self, error: Exception) -> None:
        self.stop()
        is_copied = isinstance(error, ShardedStateError)  # ahead of faults
        tell_not_kept(str(error), is_news=self._place.rank == 0 and not is_copied)

    def _note(self, step: int, state: TrainState, layout: Layout) -> Whole:
        versions = layout.note()
        rest = pickle.dumps(layout.rest(state))
        groups = {one.name: _without_parameters(one.value) for one in layout.optimizers}
        if not layout.is_alike:
            self._own.write(step, rest)
        return Whole(step, groups, rest, versions, layout.on_host())

    def _layout_of(self, state: TrainState) -> Layout:
        torch = self._lib.torch
        kinds = torch.nn.Module | torch.optim.Optimizer | torch.Tensor
        known = tuple(id(one.value) for one in state.entries if isinstance(one.value, kinds))
        if self._layout is None or known != self._known:
            self._marks.forget()
            self._layout, self._known = Layout(self._lib, state), known
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
        return self._is_asked and not self._is_over

    def stop(self) -> None:
        """Keep nothing from now on: the loop was left, or the state is of no such kind."""
        self._is_over = True
        self._channel.rescue_signal = 0

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
        """Keep the state of a program that has failed; one that has come to its end has no process group."""
        if self._lib.distributed.is_initialized() and os.getpid() == self._pid:
            is_behind = self._layout is not None and self._layout.device is not None
            self.keep(TORN_S if is_behind else 0.0)

    def _kept(self) -> bool:
        """Keep the state if there is one that is new; return whether it was whole.

        Raises:
            HpcElasticError: it cannot be kept.
            OSError: there is no room for it.
        """
        noted, layout = self._marks.newest(), self._layout
        if noted is None or layout is None:
            return True  # nothing is new
        if layout.device is not None and not self._has_stepped:
            raise UnfitStateError("no step of an optimizer was noticed")
        if not _is_whole(noted, layout):
            return False
        whole = noted.value
        place = self._place._replace(step=whole.step, is_alike=layout.is_alike)
        with one_at_a_time(self.folder):
            remove_unfinished(self.folder)
            if any(one.round == place.round and one.step >= place.step for one in found_in(self.folder)):
                return True  # another rank of this node has it
            check_room(self.folder, layout.size() * (1 if layout.device is None else 2))
            began = self._clock.monotonic()
            with layout.aside():
                tensors, own = layout.content(whole)
                content = {"tensors": tensors, "own": pickled(self._lib, own)}
            if not _is_whole(noted, layout) or not self._written(place, content, noted, layout):
                return False
        took_s = self._clock.monotonic() - began
        what = f"the state of step {place.step} is kept in this node's memory"
        logger.warning("%s: %s, in %.3f s", SAYS, what, took_s)
        return True

    def _written(self, place: Rescued, content: dict[str, Any], noted: Noted[Whole], layout: Layout) -> bool:
        path = os.path.join(self.folder, place.file_name)
        try:
            self._lib.torch.save(content, f"{path}{PRIVATE}")
            if layout.device is None and not _is_whole(noted, layout):  # else a copy is written
                return False
            os.rename(f"{path}{PRIVATE}", path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{PRIVATE}")
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


def _noted(value: Any) -> Any:
    """Return a copy of a tensor or value; the number in a tensor without dimensions, which is faster."""
    if not hasattr(value, "dim"):
        return copy.deepcopy(value)
    return value.clone() if value.dim() else value.item()


def _is_whole(noted: Noted[Whole], layout: Layout) -> bool:
    return noted.is_whole() and layout.versions() == noted.value.versions


def _without_parameters(optimizer: Any) -> list[dict[str, Any]]:
    return [
        {
            key: value.clone() if hasattr(value, "clone") else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def _size(value: Any) -> int:
    return value.numel() * value.element_size() if hasattr(value, "element_size") else 0


class AgentAsks:
    """The handler of the agent's signal: a thread calls the newest function that wants to know.

    Args:
        act: the function.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Do nothing in the main thread: without a handler the thread would hear of nothing."""

    def listen(self, reader: socket.socket, _writer: socket.socket) -> None:
        """Wait for signals, of which the interpreter writes the numbers at once (thread)."""
        while data := reader.recv(64):
            if ASKED_BY in data:
                self.act()


def heed(act: Callable[[], None]) -> bool:
    """Have a thread call a function on the agent's signal, even while the main thread hangs.

    Returns:
        Whether it does; not beside other handlers, or outside the main thread.
    """
    handler = signal.getsignal(ASKED_BY)
    if isinstance(handler, AgentAsks):
        handler.act = act
        return True
    is_free = handler in (signal.SIG_DFL, signal.SIG_IGN)
    if not is_free or threading.current_thread() is not threading.main_thread():
        return False
    reader, writer = socket.socketpair()
    writer.settimeout(0.0)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        return False
    asks = AgentAsks(act)
    signal.signal(ASKED_BY, asks)
    signal.siginterrupt(ASKED_BY, False)  # noqa: FBT003 - it has no name
    threading.Thread(
        target=asks.listen, args=(reader, writer), name="hpc_elastic rescue", daemon=True
    ).start()
    return True
