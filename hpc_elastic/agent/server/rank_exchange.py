"""The exchange of descriptions and ranks between the agents of a round."""

from __future__ import annotations

import json
from typing import Any

from hpc_elastic.agent.rank_assignment import Ranks, RoleInstanceInfo, assign_ranks
from hpc_elastic.typed_json import decode, parse

_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED_RANKS = "torchelastic/assigned_ranks/"


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
