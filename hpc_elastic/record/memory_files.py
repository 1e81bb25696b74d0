"""The names and heads of files in a node's memory that hold the state of a training. Pure.

Workers write them (`hpc_elastic.frameworks.torch`), in the private directory of their agent. The agent reads
only the step of a state, never its content.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from hpc_elastic.ids import COPY

RESCUED: Final = re.compile(r"rescued-(\d+)-(\d+)-(\d+)-(\d+)-([01])")  # round, step, rank, ranks, alike
OWN: Final = re.compile(r"own-(\d+)-(\d+)-[0-2]")  # round, rank; the values of one rank
OWN_HEAD: Final = struct.Struct("<QQI")  # step, bytes, their checksum
COPY_MAGIC: Final = b"HPCECPY1"  # begins a sealed copy
# magic, token, round, step, rank, ranks, place of the values, end, checksum
COPY_HEAD: Final = struct.Struct("<8s8sQQQQQQQ")
HEAD_BYTES: Final = max(OWN_HEAD.size, COPY_HEAD.size)


def step_in(name: str, head: bytes) -> int | None:
    """Return the step of the state in a file; None: the file holds no whole one.

    Args:
        name: of the file.
        head: its first `HEAD_BYTES` bytes, or all of a shorter file.
    """
    rescued = RESCUED.fullmatch(name)
    if rescued is not None:
        return int(rescued[2])
    if OWN.fullmatch(name) and len(head) >= OWN_HEAD.size:
        return int(OWN_HEAD.unpack_from(head)[0])
    if name.startswith(COPY) and head.startswith(COPY_MAGIC) and len(head) >= COPY_HEAD.size:
        return int(COPY_HEAD.unpack_from(head)[3])
    return None
