"""A name for this node that no other agent of the same run has.

Nodes that Slurm names have names of their own. Elsewhere an agent is called like its host, and a
second agent on that host, as people start them to try something out, needs another name: of two
nodes with one name the later one is taken for the successor of the other, who would be lost.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from itertools import chain, count

from hpc_elastic.errors import RunDirError


def claim_node_name(wanted: str, run_dir: str) -> tuple[str, int]:
    """Return a name, and a file descriptor that keeps it for this process: the kernel lets go of both.

    Args:
        wanted: the name, if nobody on this host has it in the run; else a number follows.
        run_dir: the directory of the run.

    Raises:
        RunDirError: this host lets nobody claim a name.
    """
    import socket  # noqa: PLC0415 - below Slurm nobody needs it

    run = f"{os.geteuid()}/{zlib.crc32(os.path.realpath(run_dir).encode()):08x}"
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for name in _names(wanted):
        try:
            claim.bind(f"\0hpc_elastic/{run}/{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                claim.close()
                raise RunDirError(
                    f"the node name {name!r} cannot be claimed: {error.strerror}",
                    where=f"run directory {run_dir}",
                    fix="give each agent a --node-rank",
                ) from error
        else:
            return name, claim.detach()
    raise RuntimeError("numbers have come to an end")


def _names(wanted: str) -> Iterator[str]:
    return chain([wanted], (f"{wanted}-{number}" for number in count(2)))
