"""Values of one name that differ between ranks: experts, stages of a pipeline, statistics of batches.

Sharded tensors are parts of one. All else counts as the same on all ranks as long as its content is.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch, pickled
from hpc_elastic.frameworks.torch.trees import OWN

_SAMPLES = 4  # numbers of a tensor that are compared while a step waits
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

    If buffers of modules alone differ, those of rank 0 are there for another number of ranks, too.

    Args:
        lib: PyTorch's modules.
        content: all that the rank has.
        rank: this one.
        names: of the values that differ.
        statistics: the names of buffers of modules, and of values that are no tensors.
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
                samples.setdefault((value.device, value.dtype), {})[name] = _sample(value)
        data = [lib.torch.cat([*named.values()]).view(lib.torch.uint8).cpu() for named in samples.values()]
    heads = ["\n".join(named).encode() for named in samples.values()]
    if len(set(ranks.all_told(_hash(b"".join([*heads, *(one.numpy().tobytes() for one in data)]))))) == 1:
        return ""
    numbers = {
        name: part.numpy().tobytes()
        for named, all_of_them in zip(samples.values(), data, strict=True)
        for name, part in zip(named, all_of_them.split([one.nbytes for one in named.values()]), strict=True)
    }
    told = ranks.all_told(numbers)
    names = sorted(set[str]().union(*told))
    return next((name for name in names if len({one.get(name) for one in told}) > 1), "")


def _sample(part: Any) -> Any:
    """Return a few numbers of a tensor."""
    count = min(_SAMPLES, part.numel())
    if part.is_contiguous():
        return part.as_strided((count,), (part.numel() // count,), part.storage_offset())
    return part.reshape(-1)[:: part.numel() // count][:count]
