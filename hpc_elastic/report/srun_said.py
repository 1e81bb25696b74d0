"""What srun has said of the agents of nodes that have not come. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client import hostlist

_ENDED = re.compile(r"^srun: error: (\S+): tasks? [\d,-]+: (.+)$", re.MULTILINE)
_START_ENDS = "hpc_elastic finish: "  # what was said before it is of an earlier start


def srun_said(log: str, hosts: Collection[str]) -> str:
    """Return how the agents of some hosts have ended, as srun tells it; empty if it does not.

    Args:
        log: the end of the batch script's log.
        hosts: names of nodes.
    """
    told = {}
    for names, how in _ENDED.findall(log.rpartition(_START_ENDS)[2]):
        told.update(dict.fromkeys(set(_expanded(names)).intersection(hosts), how.strip()))
    parts = [f"{host}: {told[host]}" for host in sorted(told)]
    return f"srun says that agents have ended before they came: {', '.join(parts)}" if parts else ""


def _expanded(names: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(names)
    except InputError:
        return ()
