"""This rank among all, the process groups of checkpoints, and values that differ between ranks.

Those are experts, stages of a pipeline, statistics of batches. Sharded tensors are parts of one. All else
counts as the same on all ranks as long as its content is.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import pickle
import warnings
import zlib
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch.train_state import Torch, pickled
from hpc_elastic.frameworks.torch.trees import OWN, WHERE
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
        return self.gathered(value, self.group)

    def each_told(self, value: Any) -> list[Any]:
        """Return the values of all ranks; all of them call it in the threads that write."""
        return self.gathered(value, self.group_of_saves)

    def greatest(self, values: list[float]) -> list[float]:
        """Return the greatest value of all ranks, by place; all call it in the thread of the training."""
        if self.group is None:
            return values
        torch = importlib.import_module("torch")
        found = torch.tensor(values, dtype=torch.float64)
        self.distributed.all_reduce(found, op=self.distributed.ReduceOp.MAX, group=self.group)
        greatest: list[float] = found.tolist()
        return greatest

    def gathered(self, value: Any, group: Any) -> list[Any]:
        """Return the values of all ranks of a group; all of them call it in the thread that uses it."""
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


_SAMPLES, _WHOLE = 4, 64  # numbers of a tensor that are compared while a step waits; all, if it has no more
Digests = Mapping[str, int]


def digests(lib: Torch, content: Mapping[str, Any]) -> Digests:
    """Return a number for each value that is not sharded, another one for other content, form or kind."""
    return {
        name: _digest(lib.torch, value)
        for name, value in content.items()
        if not hasattr(value, "to_local") and not name.startswith(OWN)
    }


def _digest(torch: Any, value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        try:
            return _hash(pickle.dumps(value))
        except Exception:  # noqa: BLE001 - the save tells of it
            return 0
    data = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return _hash(f"{value.dtype} {tuple(value.shape)} {zlib.crc32(data.numpy())}".encode())


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def differing(lib: Torch, ranks: RankGroups, found: Digests, group: Any) -> set[str]:
    """Return the names whose values are not the same on all ranks of a group; all of them call it."""
    if group is None:
        return set()
    dist, torch, names = ranks.distributed, lib.torch, sorted(found)
    mine = torch.tensor([_hash("\n".join(names).encode()), *(found[name] for name in names)])
    heads: list[Any] = [None] * ranks.size
    dist.all_gather_object(heads, (int(mine[0]), _hash(mine.numpy().tobytes())), group=group)
    if len(set(heads)) == 1:
        return set()
    if len({head for head, _ in heads}) > 1:  # not all ranks have the same names
        told: list[Any] = [None] * ranks.size
        dist.all_gather_object(told, found, group=group)
        every = set[str]().union(*told)
        return {name for name in every if len({one.get(name) for one in told}) > 1}
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN, group=group)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return {name for name, is_other in zip(names, (least != most)[1:].tolist(), strict=True) if is_other}


def parted(
    lib: Torch, content: Mapping[str, Any], rank: int, names: Collection[str], statistics: Collection[str]
) -> dict[str, Any]:
    """Return the values that a rank writes: those that differ between ranks have the rank in their names.

    If buffers of modules or values that are no tensors alone differ (`statistics`), those of rank 0 are there
    for another number of ranks, too.
    """
    own = [name for name in content if name in names]
    found = dict(content)
    if set(names) <= set(statistics):
        found[f"{OWN}{rank}.buffers"] = pickled(lib, {name: content[name] for name in own})
        gone = own if rank else []
    else:
        found.update({f"{OWN}{rank}/{name}": content[name] for name in own})
        gone = own
    return {name: value for name, value in found.items() if name not in set(gone)}


def own_parameter(lib: Torch, ranks: RankGroups, tensors: Iterable[tuple[str, Any]]) -> str:
    """Return a parameter or tensor of the state that differs between ranks, empty without one; all call it.

    A few numbers of each are compared, as the ranks wait for it.
    """
    samples: dict[Any, dict[str, Any]] = {}
    with lib.torch.no_grad():
        for name, value in tensors:
            if value.numel():
                sample = _sample(value)
                samples.setdefault((sample.device, sample.dtype, sample.shape), {})[name] = sample
        alike = [lib.torch.stack([*named.values()]).flatten() for named in samples.values()]
        data = [one.view(lib.torch.uint8).cpu() for one in alike]
    heads = ["\n".join(named).encode() for named in samples.values()]
    if len(set(ranks.all_told(_hash(b"".join([*heads, *(one.numpy().tobytes() for one in data)]))))) == 1:
        return ""
    numbers = {
        name: part.numpy().tobytes()
        for named, all_of_them in zip(samples.values(), data, strict=True)
        for name, part in zip(named, all_of_them.chunk(len(named)), strict=True)
    }
    told = ranks.all_told(numbers)
    names = sorted(set[str]().union(*told))
    return next((name for name in names if len({one.get(name) for one in told}) > 1), "")


def _sample(part: Any) -> Any:
    """Return a few numbers of a tensor, all of a small one."""
    count = part.numel()
    if count <= _WHOLE:
        return part
    if part.is_contiguous():
        return part.as_strided((_SAMPLES,), (count // _SAMPLES,), part.storage_offset())
    return part.reshape(-1)[:: count // _SAMPLES][:_SAMPLES]
