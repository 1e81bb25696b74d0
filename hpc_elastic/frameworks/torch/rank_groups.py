"""This rank among all, and the process groups of checkpoints."""

from __future__ import annotations

import atexit
import importlib
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch.train_state import WHERE, Torch

_LOOP, _SAVES, _REPLICAS = "loop", "saves", "replicas"
_TASKS, _THREAD = "/proc/self/task", b"pt_gloo_runloop"  # the name that PyTorch gives it
_LOOK_S, _LOOKS = 0.005, 3  # between two looks at the threads [s], and how many find them at rest
_REST_S = 2.0  # no longer
_PIECE_S = 300.0  # for a piece of a copy on its way to another node, and for a rank that is late


class RankGroups:
    """This rank among all, and process groups of their own for the CPU.

    At the end of the program their threads come to rest first: one of PyTorch's that drops its last tensor
    while the interpreter ends aborts the process, though the training is complete. The groups are not ended
    for it: that waits for these threads, with the lock of the interpreter that they may wait for.

    Args:
        distributed: ``torch.distributed``.
        names: of the groups; without any there is one rank.
    """

    def __init__(self, distributed: Any, names: Sequence[str] = ()) -> None:
        self.distributed = distributed
        self.rank: int = distributed.get_rank() if names else 0
        self.size: int = distributed.get_world_size() if names else 1
        self._groups = {name: self._made(name) for name in names}
        self._pid = os.getpid()
        atexit.register(self.rest)

    def _made(self, name: str) -> Any:
        more = {"timeout": timedelta(seconds=_PIECE_S)} if name == _REPLICAS else {}
        return self.distributed.new_group(backend="gloo", group_desc=f"hpc_elastic {name}", **more)

    def rest(self) -> None:
        """Let the threads of process groups come to rest, before a group or the interpreter ends.

        PyTorch ends a group with the lock of the interpreter, for which such a thread may be waiting.
        """
        if self._groups and os.getpid() == self._pid:  # a child has none of the threads
            wait_for_rest(SystemClock())

    @property
    def group(self) -> Any:
        """The group for the thread of the training; None without process groups."""
        return self._groups.get(_LOOP)

    @property
    def group_of_saves(self) -> Any:
        """The group for the thread that writes; None without process groups."""
        return self._groups.get(_SAVES)

    @property
    def group_of_replicas(self) -> Any:
        """The group for the thread that sends copies to other nodes; None: none does."""
        return self._groups.get(_REPLICAS)

    def told(self, value: Any, by: int = 0) -> Any:
        """Return the value that one rank has given; all ranks call it."""
        if self.group is None:
            return value
        values = [value]
        self.distributed.broadcast_object_list(values, src=by, group=self.group)
        return values[0]

    def all_told(self, value: Any) -> list[Any]:
        """Return the values of all ranks; all of them call it in the thread of the training."""
        return self._gathered(value, self.group)

    def each_told(self, value: Any) -> list[Any]:
        """Return the values of all ranks; all of them call it in the threads that write."""
        return self._gathered(value, self.group_of_saves)

    def sizes_told(self, value: int) -> list[int]:
        """Return the numbers of all ranks; all of them call it in the threads that send copies."""
        return self._gathered(value, self.group_of_replicas)

    def greatest(self, values: list[float]) -> list[float]:
        """Return the greatest value of all ranks, by place; all call it in the thread of the training."""
        if self.group is None:
            return values
        torch = importlib.import_module("torch")
        found = torch.tensor(values, dtype=torch.float64)
        self.distributed.all_reduce(found, op=self.distributed.ReduceOp.MAX, group=self.group)
        greatest: list[float] = found.tolist()
        return greatest

    def _gathered(self, value: Any, group: Any) -> list[Any]:
        if group is None:
            return [value]
        values = [None] * self.size
        self.distributed.all_gather_object(values, value, group=group)
        return values


def wait_for_rest(clock: Clock) -> None:
    """Come back when no thread of gloo's has been running for some looks, each after a pause for it."""
    until, quiet = clock.monotonic() + _REST_S, 0
    while quiet < _LOOKS and clock.monotonic() < until:
        clock.sleep(_LOOK_S)
        quiet = 0 if any(map(_is_running, os.listdir(_TASKS))) else quiet + 1


def _is_running(task: str) -> bool:
    """Tell whether a thread is one of gloo's that runs, or waits for a CPU (proc(5))."""
    try:
        with open(f"{_TASKS}/{task}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return False  # it has ended
    return head.partition(b"(")[2] == _THREAD and rest.split()[0] == b"R"


def rank_groups(
    lib: Torch, environ: Mapping[str, str], *, saves: bool = True, replicas: bool = False
) -> RankGroups:
    """Make the process groups; all ranks make them.

    Args:
        lib: PyTorch's modules.
        environ: of this process.
        saves: whether checkpoints are written in a thread of their own.
        replicas: whether copies are sent to other nodes.

    Raises:
        InputError: there are several ranks, and no process group.
    """
    dist = lib.distributed
    # one rank reads its own values alone; a single process saves alone: no mistake, and no news each time
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    if dist.is_available() and dist.is_initialized():
        return RankGroups(dist, [_LOOP, *[_SAVES] * saves, *[_REPLICAS] * replicas])
    if environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"there are {environ['WORLD_SIZE']} ranks, and no process group",
            where=WHERE,
            fix="call torch.distributed.init_process_group first",
        )
    return RankGroups(dist)
