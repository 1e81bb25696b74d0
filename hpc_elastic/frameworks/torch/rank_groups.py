"""This rank among all, and the process groups of checkpoints."""

from __future__ import annotations

import atexit
import importlib
import os
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch.train_state import Torch
from hpc_elastic.frameworks.torch.trees import WHERE
from hpc_elastic.named_tuple import NamedTuple

_TASKS, _THREAD = "/proc/self/task", b"pt_gloo_runloop"  # the name that PyTorch gives it
_LOOK_S, _LOOKS = 0.005, 3  # between two looks at the threads [s], and how many find them at rest
_REST_S = 20.0  # no longer: on a busy machine a thread waits for a CPU for seconds
_PIECE_S = 300.0  # for a piece of a copy on its way to another node, and for a rank that is late


class RankGroups(NamedTuple):
    """This rank among all, and process groups of their own for the CPU."""

    rank: int  # this one
    size: int  # number of ranks
    distributed: Any  # ``torch.distributed``
    group: Any = None  # for the thread of the training; None without process groups
    group_of_saves: Any = None  # for the thread that writes; None: none does
    group_of_replicas: Any = None  # for the thread that sends copies to other nodes; None: none does

    def rest(self) -> None:
        """Let the threads of process groups come to rest, before a group or the interpreter ends.

        PyTorch ends a group with the lock of the interpreter, for which such a thread may be waiting; and one
        that drops its last tensor while the interpreter ends aborts the process of a complete training.
        """
        if self.group is not None:
            wait_for_rest(SystemClock())

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
    """Make the process groups, all ranks: for the loop, for saves and for replicas, as they are wanted.

    Raises:
        InputError: there are several ranks, and no process group.
    """
    dist = lib.distributed
    # one rank reads its own values alone; a single process saves alone: no mistake, and no news each time
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    if dist.is_available() and dist.is_initialized():
        groups = RankGroups(
            dist.get_rank(),
            dist.get_world_size(),
            dist,
            _new_group(dist, "loop"),
            _new_group(dist, "saves") if saves else None,
            _new_group(dist, "replicas", timeout=timedelta(seconds=_PIECE_S)) if replicas else None,
        )
        atexit.register(groups.rest)
        return groups
    if environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"there are {environ['WORLD_SIZE']} ranks, and no process group",
            where=WHERE,
            fix="call torch.distributed.init_process_group first",
        )
    return RankGroups(0, 1, dist)


def _new_group(dist: Any, name: str, **more: Any) -> Any:
    return dist.new_group(backend="gloo", group_desc=f"hpc_elastic {name}", **more)
