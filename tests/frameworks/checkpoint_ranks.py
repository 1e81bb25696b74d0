"""What the ranks do in the tests of checkpoints; loaded by tests/frameworks/ranks.py alone."""

from __future__ import annotations

import atexit
import hashlib
import os
import resource
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from hpc_elastic.frameworks.saving import Saves
from hpc_elastic.frameworks.torch import Checkpoints, Resharded
from hpc_elastic.frameworks.torch.memory.copies import PRIVATE, Slot, found_copies
from hpc_elastic.frameworks.torch.memory.layout import Layout
from hpc_elastic.frameworks.torch.memory.memory_copies import MemoryCopies, Replicas
from hpc_elastic.frameworks.torch.memory.rescue import Rescue
from hpc_elastic.frameworks.torch.pace import SavePace
from hpc_elastic.frameworks.torch.trainer_memory import trainer_memory
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.worker.request_pipe import ask
from tests.frameworks.expert_ranks import cut_otherwise, experts, local_steps  # noqa: F401 - some of the functions

BATCH = 24  # of all ranks


class Position:
    """A data loader of one rank: how many samples it has handed out."""

    def __init__(self, done: int = 0) -> None:
        self.done = done

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position."""
        self.done = state["done"]


class Net(nn.Module):
    """A network with a layer that no step uses, so that the optimizer has no state for it.

    Its counter is another tensor after each step.

    Args:
        width: of the hidden layer.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        self.unused = nn.Linear(2, 2)
        self.tied = self.layers[0]  # of two names, as the embeddings of language models are
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        """Return what the layers make of a batch."""
        self.calls = self.calls + 1
        return self.layers(x)


class Training:
    """A small network, the same on any number of ranks up to the order of sums.

    Args:
        kind: ``ddp`` or ``fsdp``.
        width: of its hidden layer.
        dtype: of its weights.
        optimizer: the name of its class.
    """

    def __init__(
        self, kind: str = "ddp", width: int = 8, dtype: str = "float32", optimizer: str = "AdamW"
    ) -> None:
        torch.manual_seed(20)
        self.net = Net(width).to(getattr(torch, dtype))
        self.model: Any = self.net
        if kind == "fsdp":
            fully_shard(self.net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        else:
            self.model = DistributedDataParallel(self.net, find_unused_parameters=True)
        self.optimizer = getattr(torch.optim, optimizer)(self.net.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.extra: dict[str, Any] = {"average": torch.zeros(3), "best": {"loss": 9.0}}

    @property
    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "extra": self.extra,
        }

    def step(self, number: int) -> None:
        """Make one step; its data depend on its number alone."""
        x = torch.rand(BATCH, 4, generator=torch.Generator().manual_seed(number))
        x = x[dist.get_rank() :: dist.get_world_size()].to(next(self.net.parameters()).dtype)
        self.optimizer.zero_grad()
        loss = ((self.model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.extra["average"].add_(number)
        self.extra["best"] = {"loss": float(number)}

    def seen(self) -> dict[str, Any]:
        """Return all that is saved, whole."""
        tensors = {name: _whole(tensor) for name, tensor in self.net.state_dict().items()}
        names = {id(parameter): name for name, parameter in self.net.named_parameters()}
        for parameter, state in self.optimizer.state.items():
            tensors.update({f"{names[id(parameter)]}.{key}": _whole(value) for key, value in state.items()})
        return {
            **tensors,
            "lr": self.optimizer.param_groups[0]["lr"],
            "schedule": self.schedule.last_epoch,
            "average": self.extra["average"].tolist(),
            "best": self.extra["best"],
        }


def _whole(value: Any) -> Any:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.tolist() if isinstance(value, torch.Tensor) else value


def train(directory: str, kind: str, steps: int, every: int | None, total: int = 100) -> dict[str, Any]:
    """Go on from the newest checkpoint for some steps at most; tell where it began and what came of it."""
    training = Training(kind)
    checkpoints = Checkpoints(directory, every=every)
    start = checkpoints.load(training.state)
    loaded = training.seen()
    for step in range(start, min(total, start + steps)):
        training.step(step)
        checkpoints.done(step + 1, training.state)
    checkpoints.wait()
    found = checkpoints.latest()
    return {
        "start": start,
        "loaded": loaded,
        "seen": training.seen(),
        "latest": None if found is None else [found.step, found.world_size],
        "all": [saved.step for saved in checkpoints.all()],
    }


def save_held_up(directory: str, signs: str) -> list[Any]:
    """Save twice; the first save is held up from outside until `signs` tells that the loop has gone on."""
    training = Training()
    checkpoints = Checkpoints(directory)
    training.step(0)
    checkpoints.save(1, training.state)
    training.step(1)
    (Path(signs) / f"went-on-{dist.get_rank()}").touch()
    checkpoints.save(2, training.state)
    first = checkpoints.all()
    checkpoints.wait()
    return [[saved.step for saved in first], [saved.step for saved in checkpoints.all()]]


def save_with_failures(directory: str, steps: int) -> list[int]:
    """Save after each step, whatever becomes of it; return what is complete in the end."""
    training = Training()
    checkpoints = Checkpoints(directory, every=1, keep=9)
    for step in checkpoints.steps(steps, training.state):
        training.step(step)
    return [saved.step for saved in checkpoints.all()]


def load_other(directory: str, choices: dict[str, Any]) -> list[Any]:
    """Load a checkpoint into another training; return the error, and whether it has changed anything."""
    training = Training(**choices)
    before = training.seen()
    try:
        Checkpoints(directory).load(training.state)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return [type(error).__name__, str(error), before == training.seen()]
    return ["", "", False]


def positions(directory: str, resharded: bool) -> list[int]:
    """Load a loader that is at another place on each rank, then save it further on; return its places."""
    loader = Position(10 * (1 + dist.get_rank()))

    def share(states: Any) -> dict[str, int]:
        return {"done": sum(state["done"] for state in states) // dist.get_world_size()}

    state: dict[str, Any] = {"loader": Resharded(loader, share) if resharded else loader}
    checkpoints = Checkpoints(directory)
    step = checkpoints.load(state)
    loaded = loader.done
    loader.done += 1
    checkpoints.save(step + 1, state)
    checkpoints.wait()
    return [step, loaded]


def save_a_function(directory: str) -> None:
    """Save a value that no pickle can have."""
    Checkpoints(directory).save(1, {"steps": 1, "warmup": {"factor": lambda step: step}})


def with_loader_workers(directory: str, signs: str) -> list[Any]:
    """Train with workers of a DataLoader alive, which are made while a save is under way."""
    training = Training()
    checkpoints = Checkpoints(directory)
    training.step(0)
    checkpoints.save(1, training.state)
    data: Any = list(range(6))
    loader: DataLoader[Any] = DataLoader(data, num_workers=2, persistent_workers=True, batch_size=2)
    first = [batch.tolist() for batch in loader]
    (Path(signs) / f"went-on-{dist.get_rank()}").touch()
    checkpoints.save(2, training.state)
    second = [batch.tolist() for batch in loader]
    checkpoints.wait()
    return [first, second, [saved.step for saved in checkpoints.all()]]


def rescue_of(checkpoints: Checkpoints) -> Rescue:
    """Return this rank's rescue."""
    memory = checkpoints._memory
    assert memory is not None
    assert memory.rescue is not None
    return memory.rescue


def copies_of(checkpoints: Checkpoints) -> MemoryCopies:
    """Return this rank's copies."""
    memory = checkpoints._memory
    assert memory is not None
    assert memory.copies is not None
    return memory.copies


def copy(steps: int, how: str = "", kind: str = "fsdp", replicas: Any = 0) -> dict[str, Any]:
    """Make some steps with a copy of the state after each but the first two; tell what was loaded and kept.

    Args:
        steps: to make.
        how: the last one ends: rank 1 ``dies`` in the middle of its copy; its weights are ``not finite``;
            there is ``no room``, or none ``for others``; rank 1 ``dies sending`` it; the loop ``stops``;
            its weights are changed after it: the training ``changes``.
        kind: of the training.
        replicas: second copies on other nodes.
    """
    training = Training(kind)
    state = {**training.state, "rank": dist.get_rank()}
    if how == "for others" and dist.get_rank() == 0:
        state["large"] = bytes(1 << 20)
    checkpoints = Checkpoints(every=None, replicas=replicas)
    own = copies_of(checkpoints)
    own._share = 1e9
    start = checkpoints.load(state)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = {"no room": 512, "for others": 1 << 16 if dist.get_rank() == 1 else most}.get(how, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    loaded = {**training.seen(), "rank": state["rank"]}
    for step in range(start, start + steps):
        training.step(step)
        if step == start + steps - 1:
            _disturb(training, how)
        checkpoints.done(step + 1, state)
        if how != "stops":
            _wait_for_copies(own)
    if how == "stops":
        checkpoints._end_memory()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    dist.barrier()
    kept = sorted([one.rank, one.step, one.round] for one in found_copies(own.folder, own.prefix))
    seen = training.seen()
    if how == "changes":
        next(training.net.parameters()).data.fill_(7.0)
    return {"start": start, "loaded": loaded, "seen": seen, "kept": kept}


def _wait_for_copies(own: MemoryCopies) -> None:
    """Come back when the copy under way is sealed, and is on another node."""
    thread, replicas = own._background._thread, own._replicas
    if thread is not None:
        thread.join()
    if replicas is not None:
        wait_until(lambda: not replicas.look()[0], "the copies to be sent", timeout_s=60.0)


def _disturb(training: Training, how: str) -> None:
    """Break what is to break in the last step."""
    if dist.get_rank() == 1 and how == "dies sending":
        die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        setattr(Replicas, "_piece", die)  # noqa: B010 - a method
    if dist.get_rank() == 1 and how == "dies":
        setattr(Slot, "view", lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010 - a method
    elif dist.get_rank() == 1 and how == "not finite":
        with torch.no_grad():
            next(training.net.parameters()).to_local().fill_(torch.nan)


def _keep_before_a_step(optimizer: torch.optim.Optimizer, keep: Callable[..., None]) -> None:
    optimizer.register_step_pre_hook(keep)
    optimizer.step()


def _keep_in_its_closure(optimizer: torch.optim.Optimizer, keep: Callable[..., None]) -> None:
    def closure() -> float:
        keep()
        return 0.0

    optimizer.step(closure)


def _keep_after_its_closure(optimizer: torch.optim.Optimizer, keep: Callable[..., None]) -> None:
    optimizer.register_step_post_hook(keep)
    optimizer.step(lambda: 0.0)


KEPT_IN_A_STEP = {
    "in a step": _keep_before_a_step,
    "in its closure": _keep_in_its_closure,
    "after its closure": _keep_after_its_closure,
}


def rescue(steps: int, how: str = "asked", choices: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make some steps, then keep the state as if another rank had failed; tell what was loaded and kept.

    Args:
        steps: to make.
        how: ``asked`` by the agent, or while the training ``goes on``; with an optimizer that has ``grown``;
            while a step with ``another tensor`` in the state is noted;
            ``in a step`` of the optimizer, ``in its closure`` or ``after its closure``; with weights that are
            ``not finite``, or with ``no room``; in a program that has begun ``another training``.
        choices: of the training.
    """
    training, begun = Training(**(choices or {})), threading.Event()
    training.optimizer.register_step_pre_hook(lambda *_: begun.set())
    checkpoints = Checkpoints(every=None)
    start = checkpoints.load(training.state)
    loaded = training.seen()
    for step in range(start, start + steps):
        training.step(step)
        checkpoints.done(step + 1, training.state)
    own = rescue_of(checkpoints)
    _go_on_otherwise(how, training, checkpoints, start + steps)
    if how in KEPT_IN_A_STEP:
        KEPT_IN_A_STEP[how](training.optimizer, lambda *_: own.keep(0.0))
    elif how == "not finite":
        with torch.no_grad():
            next(training.net.parameters())[0] = torch.nan
        own.keep(0.0)
    elif how == "no room":
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, most))
        own.keep(0.0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    elif how == "goes on":
        _go_on_while_it_is_kept(training, checkpoints, start + steps, begun)
    elif steps and not how.startswith("another t"):  # it is kept already, or never
        assert ask(own._channel)
        wait_until(lambda: not own._channel.keeper, "the state to be kept", timeout_s=60.0)
    own._at_end()
    names = (name for name in os.listdir(own.folder) if not name.endswith(PRIVATE))  # another rank's
    kept = sorted(name for name in names if name.startswith("rescued"))
    return {"start": start, "loaded": loaded, "seen": training.seen(), "kept": kept}


def _go_on_otherwise(how: str, training: Training, checkpoints: Checkpoints, step: int) -> None:
    """Make a step with more parameters, or begin another training."""
    if how == "grown":
        training.net.more = nn.Linear(2, 2)
        training.optimizer.add_param_group({"params": training.net.more.parameters()})
        training.step(step)
        checkpoints.done(step + 1, training.state)
    elif how == "another tensor":
        _keep_as_a_step_is_noted(training, checkpoints, step)
    elif how == "another training":
        Checkpoints(every=None, name="other")


def _keep_as_a_step_is_noted(training: Training, checkpoints: Checkpoints, step: int) -> None:
    """Keep the state while the notes of a step are made anew, as its tensor is another one."""
    own, has_looked, kept = rescue_of(checkpoints), threading.Event(), rescue_of(checkpoints)._kept

    def look() -> str:
        found = kept()
        has_looked.set()
        return found

    note = Layout.note

    def note_late(*args: Any) -> Any:
        keeper.start()
        assert has_looked.wait(60.0)
        return note(*args)

    keeper = threading.Thread(target=own.keep, args=(60.0,))
    setattr(own, "_kept", look)  # noqa: B010 - a method
    setattr(Layout, "note", note_late)  # noqa: B010 - a method
    training.step(step)
    training.extra["average"] = training.extra["average"].clone()
    checkpoints.done(step + 1, training.state)
    keeper.join(60.0)


def _go_on_while_it_is_kept(
    training: Training, checkpoints: Checkpoints, step: int, begun: threading.Event
) -> None:
    """Make steps until the state is kept; each write begins as the optimizer comes to its next step."""
    own, write = rescue_of(checkpoints), Slot.write

    def write_late(*args: Any) -> Any:
        begun.clear()
        begun.wait(0.3)  # for so long if the optimizer waits already
        return write(*args)

    setattr(Slot, "write", write_late)  # noqa: B010 - a method
    assert ask(own._channel)
    while _any_rank(wants=bool(own._channel.keeper)):  # a rank alone could make no step
        training.step(step)
        step += 1
        checkpoints.done(step, training.state)
    setattr(Slot, "write", write)  # noqa: B010 - a method


def _any_rank(*, wants: bool) -> bool:
    """Tell whether a rank wants something; all ranks call it."""
    told = torch.tensor(int(wants))
    dist.all_reduce(told)
    return bool(told)


def die_in_a_rescue(steps: int, signs: str, number: int) -> list[str]:
    """Rank 0 gets a signal while it writes its state, and rank 1, which waits for it, keeps its own then."""
    training = Training()
    checkpoints = Checkpoints(every=None)
    for step in range(checkpoints.load(training.state), steps):
        training.step(step)
        checkpoints.done(step + 1, training.state)
    own = rescue_of(checkpoints)
    dist.barrier()
    if dist.get_rank() == 0:

        def die(*_: Any) -> None:
            (Path(signs) / "writes").touch()
            wait_until((Path(signs) / "waits").exists, "rank 1", timeout_s=60.0)
            os.kill(os.getpid(), number)

        setattr(Slot, "seal", die)  # noqa: B010 - a method
    else:
        wait_until((Path(signs) / "writes").exists, "rank 0", timeout_s=60.0)
        (Path(signs) / "waits").touch()
    own.keep(0.0)
    return sorted(name for name in os.listdir(own.folder) if name.startswith("rescued"))


def die_after(directory: str, step_count: int) -> None:
    """Save at each second step, and die as a worker that is killed does."""
    training = Training()
    checkpoints = Checkpoints(directory, every=2)
    for step in checkpoints.steps(100, training.state):
        if step == step_count:
            checkpoints.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        training.step(step)


def save_by_time(directory: str, steps: int, step_s: float) -> list[Any]:
    """Save by the clocks of ranks, which differ; return the steps, and the time to the next save."""
    training = Training()
    checkpoints = Checkpoints(directory, keep=9)
    clock = FakeClock(1000.0 * dist.get_rank())
    checkpoints._clock = clock
    checkpoints._pace = SavePace(clock, checkpoints._ranks.told)
    found = []
    for step in range(checkpoints.load(training.state), steps):
        clock.advance(step_s * (1 + dist.get_rank()))
        training.step(step)
        if checkpoints.due(step + 1):
            checkpoints.save(step + 1, training.state)
            checkpoints.wait()
            found.append(step + 1)
    return [found, [saved.step for saved in checkpoints.all()][::-1], checkpoints.every_s]


def train_alone(directory: str | None) -> list[Any]:
    """Train without a process group, from where the run before has ended; tell of warnings."""
    dist.destroy_process_group()
    torch.manual_seed(20)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 3)).sum().backward()  # gradients that are there before the state is loaded
    state = {"net": net, "optimizer": optimizer, "seen": 0}
    checkpoints = Checkpoints(directory, every=2)
    start = checkpoints.load(state)
    with warnings.catch_warnings(record=True) as warned:
        for step in range(start, start + 3):
            optimizer.zero_grad()
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            state["seen"] = step + 1
            checkpoints.done(step + 1, state)
        checkpoints.wait()
    return [start, net.weight.tolist(), [saved.step for saved in checkpoints.all()], len(warned)]


def train_folds(directory: str, *totals: int) -> list[Any]:
    """Train models in turn with checkpoints of one name, the last one twice; return their steps."""
    counts, net = [], nn.Linear(1, 1)
    for total in totals:
        net = nn.Linear(1, 1)
        counts.append(len([*Checkpoints(directory, every=1).steps(total, {"net": net})]))
    return [*counts, len([*Checkpoints(directory, every=1).steps(totals[-1], {"net": net})])]


def without_group(directory: str) -> None:
    """Make checkpoints before the process group."""
    dist.destroy_process_group()
    Checkpoints(directory)


def busy_at_the_end(directory: str) -> bool:
    """Save once, and end the program while a thread of a group runs; return whether it has come to rest."""
    checkpoints = Checkpoints(directory, every=1)
    for _ in checkpoints.steps(1, {"done": torch.zeros(1)}):
        pass
    done = _busy_thread()
    atexit._run_exitfuncs()
    return done.is_set()


def busy_as_a_trainer_ends() -> bool:
    """End the training of a Trainer while a thread of a group runs; return whether it has come to rest."""
    memory = trainer_memory(Saves(None, None), "")
    assert memory is not None
    done = _busy_thread()
    memory.stop()
    return done.is_set()


def _busy_thread() -> threading.Event:
    """Start a thread that looks like one of gloo's, and runs for a while; return what it sets at its end."""
    data, begun, done = bytes(400 << 20), threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
        begun.set()
        hashlib.sha256(data)  # without the lock of the interpreter
        done.set()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    return done
