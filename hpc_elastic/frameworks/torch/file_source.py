"""A checkpoint in files, as a source of states."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch.checkpoint_files import reader
from hpc_elastic.frameworks.torch.train_state import Torch, unpickled
from hpc_elastic.frameworks.torch.trees import OWN, WHERE


class FileSource:
    """A checkpoint in files.

    Args:
        lib: PyTorch's modules.
        path: the checkpoint.
        saved_by: number of ranks that have saved it.
        group: the process group of all ranks; None without one.
    """

    def __init__(self, lib: Torch, path: str, saved_by: int, group: Any) -> None:
        self._lib = lib
        self.name = path
        self._group = group
        dist = lib.distributed
        self._rank: int = 0 if group is None else dist.get_rank(group)
        self._saved_by = saved_by
        self._is_of_as_many: bool = saved_by == (1 if group is None else dist.get_world_size(group))
        self._reader = reader(lib.checkpoint, path)
        self._names: dict[str, str] = {}  # of this rank's own tensors, by those of all
        self._buffers = ""  # the name of this rank's own buffers, if it has some

    def stored(self) -> Mapping[str, Any]:
        """Return the record of each tensor.

        Raises:
            InputError: one differed between the ranks that have saved, and there is another number of them.
        """
        found: Mapping[str, Any] = self._reader.read_metadata().state_dict_metadata
        if self._is_of_as_many:
            mine = f"{OWN}{self._rank}/"
            self._names = {name.removeprefix(mine): name for name in found if name.startswith(mine)}
            buffers = f"{OWN}{self._rank}.buffers"
            self._buffers = buffers if buffers in found else ""
            return self._in_order({**found, **{name: found[there] for name, there in self._names.items()}})
        own = next((name for name in sorted(found) if name.startswith(OWN) and "/" in name), None)
        if own is not None:
            raise InputError(
                f"{own.partition('/')[2]} was not the same on the {self._saved_by} ranks that have saved the "
                f"checkpoint {self.name}, and now there is another number of ranks",
                where=WHERE,
                fix=f"go on with {self._saved_by} ranks, or begin a new run with tensors cut by FSDP2",
            )
        return self._in_order(found)

    def _in_order(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return records in the order in which rank 0 had their values; an optimizer's state has one."""
        if f"{OWN}names" not in found:
            return dict(found)
        names = pickle.loads(self._read([f"{OWN}names"])[0])  # noqa: S301 - as the values of ranks
        return {**{name: found[name] for name in names if name in found}, **found}

    def owns(self) -> bytes | list[bytes]:
        """Return the values of this rank; those of all ranks that have saved, if their number is another."""
        if self._is_of_as_many:
            return self._read([f"{OWN}{self._rank}"])[0]
        names = [f"{OWN}{rank}" for rank in range(self._saved_by)]
        told: list[Any] = [self._read(names) if self._rank == 0 else None]
        if self._group is not None:
            self._lib.distributed.broadcast_object_list(told, src=0, group=self._group)
        owns: list[bytes] = told[0]
        return owns

    def _read(self, names: Sequence[str]) -> list[bytes]:
        wanted: dict[str, bytes] = dict.fromkeys(names, b"")
        self._lib.checkpoint.load(wanted, storage_reader=self._reader, no_dist=True)
        known: dict[bytes, bytes] = {}
        return [known.setdefault(data, data) for data in wanted.values()]

    def fill(self, loaded: dict[str, Any]) -> None:
        """Read tensors."""
        wanted = {self._names.get(name, name): value for name, value in loaded.items()}
        self._lib.checkpoint.load(
            wanted, storage_reader=self._reader, process_group=self._group, no_dist=self._group is None
        )
        loaded.update({name: wanted[self._names.get(name, name)] for name in loaded})
        if self._buffers:
            with self._lib.torch.no_grad():
                for name, value in unpickled(self._lib, self._read([self._buffers])[0]).items():
                    if isinstance(value, self._lib.torch.Tensor):
                        loaded[name].copy_(value)
                    else:
                        loaded[name] = value
