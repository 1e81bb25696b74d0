"""The ranks of the workers of each agent, where agents differ in role and size, and their exchange. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import Count, decode, parse, read

_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED_RANKS = "torchelastic/assigned_ranks/"


class _Fields(NamedTuple):
    """The JSON form of a `RoleInstanceInfo`."""

    role: str
    rank: Count
    local_world_size: Count


class RoleInstanceInfo:
    """The description of an agent's workers for the other agents.

    Args:
        role: their task.
        rank: the agent's place in the round (group rank).
        local_world_size: how many they are.
    """

    __slots__ = ("local_world_size", "rank", "role")

    def __init__(self, role: str, rank: int, local_world_size: int) -> None:
        self.role = role
        self.rank = rank
        self.local_world_size = local_world_size

    def __repr__(self) -> str:
        return f"RoleInstanceInfo({self.role!r}, {self.rank}, {self.local_world_size})"

    def serialize(self) -> bytes:
        """Return it as JSON."""
        fields = {"role": self.role, "rank": self.rank, "local_world_size": self.local_world_size}
        return json.dumps(fields).encode()

    @staticmethod
    def deserialize(data: bytes) -> RoleInstanceInfo:
        """Return the value from the text of `serialize`.

        Raises:
            DamagedError: it has not made that.
        """
        return RoleInstanceInfo(*read(_Fields, data))

    @staticmethod
    def compare(obj1: RoleInstanceInfo, obj2: RoleInstanceInfo) -> int:
        """Return a number below, equal to or above 0: by role, and within a role by rank."""
        if obj1.role == obj2.role:
            return obj1.rank - obj2.rank
        return 1 if obj1.role > obj2.role else -1

    @staticmethod
    def find_role_boundaries(roles_infos: Sequence[RoleInstanceInfo], role: str) -> tuple[int, int]:
        """Return the first and the last index of a role in a sorted list; -1 twice if it is not there."""
        found = [index for index, info in enumerate(roles_infos) if info.role == role]
        return (found[0], found[-1]) if found else (-1, -1)


class Ranks(NamedTuple):
    """The ranks of one agent's workers: local rank n has `base_rank` + n and `role_base` + n."""

    base_rank: int
    world_size: int
    role_base: int
    role_world_size: int


def assign_ranks(infos: Iterable[RoleInstanceInfo]) -> list[Ranks]:
    """Return the ranks of all agents from their descriptions, by group rank."""
    infos = list(infos)
    world_size = sum(info.local_world_size for info in infos)
    role_sizes: dict[str, int] = {}
    base, role_bases = 0, []
    bases = []
    for info in infos:
        bases.append(base)
        base += info.local_world_size
        role_bases.append(role_sizes.get(info.role, 0))
        role_sizes[info.role] = role_bases[-1] + info.local_world_size
    return [
        Ranks(base_rank, world_size, role_base, role_sizes[info.role])
        for info, base_rank, role_base in zip(infos, bases, role_bases, strict=True)
    ]


def identical_ranks(group_rank: int, group_world_size: int, local_world_size: int) -> Ranks:
    """Return the ranks of an agent where all agents have the same role and as many workers."""
    base, world_size = group_rank * local_world_size, group_world_size * local_world_size
    return Ranks(base, world_size, base, world_size)


def exchange_ranks(store: Any, info: RoleInstanceInfo, group_world_size: int) -> Ranks:
    """Return the ranks of this agent's workers.

    Each agent sets its description; the one with group rank 0 reads all and sets their ranks, so that N
    agents cost 2 N reads and not N². Keys and values are those of torch.

    Args:
        store: the round's store; reading waits.
        info: the description of this agent.
        group_world_size: how many agents there are.

    Raises:
        DamagedError: the description of an agent cannot be read.
        StoreError: an agent has not set its description in time; torch's stores raise their own error.
    """
    store.set(f"{_ROLE_INFO}{info.rank}", info.serialize())
    if info.rank == 0:
        found = store.multi_get([f"{_ROLE_INFO}{rank}" for rank in range(group_world_size)])
        infos = [RoleInstanceInfo.deserialize(bytes(data)) for data in found]
        ranks = assign_ranks(infos)
        keys = [f"{_ASSIGNED_RANKS}{rank}" for rank in range(group_world_size)]
        store.multi_set(keys, [json.dumps(one) for one in ranks])
        return ranks[0]
    return decode(Ranks, parse(bytes(store.get(f"{_ASSIGNED_RANKS}{info.rank}"))))
