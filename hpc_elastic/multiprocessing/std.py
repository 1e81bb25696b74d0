"""Which standard streams go where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag
from typing import Final


class Std(IntFlag):
    """Which standard streams of a worker are meant."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse the value of ``--redirects`` and ``--tee``.

        Args:
            vm: ``0`` to ``3`` for all ranks, or ``<local rank>:<0-3>`` joined by commas.

        Raises:
            ValueError: it is neither.
        """
        if vm in _STD_VALUES:
            return cls(int(vm))
        found: dict[int, Std] = {}
        for part in vm.split(","):
            rank, colon, value = part.strip().partition(":")
            if not (colon and rank.isdecimal() and value in _STD_VALUES):
                raise ValueError(
                    f"{vm!r} is neither 0, 1, 2, 3 nor <local rank>:<0-3>[,...], for example 0:1,12:3"
                )
            found[int(rank)] = cls(int(value))
        return found


_STD_VALUES: Final = ("0", "1", "2", "3")


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return the streams of each local rank; a rank that a mapping lacks has none."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
