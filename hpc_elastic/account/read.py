"""Reads the files that agents have written for the account of a run."""

from __future__ import annotations

import os

from hpc_elastic.account.facts import WorkFact, begun_steps, parse_facts
from hpc_elastic.account.gpus import NodeGpus, parse_gpus
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.files import list_names, read

_SUFFIX = ".json"  # of a node's file about its GPUs
_MOST_BYTES = 64 << 20  # of one node's file; a year of rounds has less


def read_facts(paths: RunPaths) -> list[WorkFact]:
    """Return all lines about the work of a run; a file that cannot be read has none."""
    found: list[WorkFact] = []
    try:
        names = list_names(paths.account)
    except OSError:
        return found
    for name in names:
        try:
            data = read(os.path.join(paths.account, name), limit=_MOST_BYTES)
        except OSError:
            continue
        found += parse_facts(data or b"")
    return found


def read_begun(paths: RunPaths) -> dict[int, int]:
    """Return the steps that the rounds of a run went on from, by their numbers, where workers have told."""
    return begun_steps(read_facts(paths))


def gpu_file(paths: RunPaths, node: str) -> str:
    """Return the path of a node's file about its GPUs."""
    return os.path.join(paths.gpus, f"{node}{_SUFFIX}")


def read_gpu_file(path: str) -> NodeGpus | None:
    """Return the use of a node's GPUs; None if there is no file that can be read."""
    try:
        return parse_gpus(read(path) or b"")
    except OSError:
        return None


def read_gpus(paths: RunPaths) -> tuple[NodeGpus, ...]:
    """Return the use of the GPUs of all nodes that sample them."""
    try:
        names = list_names(paths.gpus)
    except OSError:
        return ()
    found = (read_gpu_file(os.path.join(paths.gpus, name)) for name in names if name.endswith(_SUFFIX))
    return tuple(one for one in found if one is not None)
