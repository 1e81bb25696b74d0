"""The names and heads of files in a node's memory that hold the state of a training. Pure.

Workers write them (`hpc_elastic.frameworks.torch`), in the private directory of their agent. The agent reads
only the step of a state, never its content. Checksums are CRC-32: of the head, and of all behind it.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final

from hpc_elastic.ids import COPY
from hpc_elastic.named_tuple import NamedTuple

RESCUED: Final = re.compile(r"rescued-(\d+)-(\d+)-(\d+)-(\d+)-([01])")  # round, step, rank, ranks, alike
OWN: Final = re.compile(r"own-(\d+)-(\d+)-[0-2]")  # round, rank; the values of one rank
OWN_HEAD: Final = struct.Struct("<QQI")  # step, bytes, the checksum of both and of the values
COPY_MAGIC: Final = b"HPCECPY2"  # begins a sealed state
_FACTS: Final = struct.Struct("<8s8sQQQQQQI")
COPY_HEAD: Final = struct.Struct(f"{_FACTS.format}I")  # the facts, and their checksum
HEAD_BYTES: Final = max(OWN_HEAD.size, COPY_HEAD.size)


class StateHead(NamedTuple):
    """The head of a sealed state, or of one rank's part of a state.

    Attributes:
        token: of the run.
        round: whose workers have made it.
        step: steps completed in it.
        rank: whose part it is, or which has kept it.
        world_size: number of ranks of the round.
        values_at: where the values begin that are no tensors [bytes].
        end: of the content [bytes].
        checksum: of the content.
    """

    token: bytes
    round: int
    step: int
    rank: int
    world_size: int
    values_at: int
    end: int
    checksum: int

    def packed(self) -> bytes:
        """Return the head with its own checksum."""
        facts = _FACTS.pack(COPY_MAGIC, *self)
        return facts + zlib.crc32(facts).to_bytes(4, "little")


def state_head(data: bytes) -> StateHead | None:
    """Return the head at the beginning of a file; None: the file is not sealed, or its head is damaged.

    Args:
        data: the first `COPY_HEAD` bytes, or more.
    """
    if len(data) < COPY_HEAD.size:
        return None
    magic, *facts, checksum = COPY_HEAD.unpack_from(data)
    is_whole = magic == COPY_MAGIC and checksum == zlib.crc32(data[: _FACTS.size])
    return StateHead(*facts) if is_whole else None


def own_file(step: int, data: bytes) -> bytes:
    """Return the content of a file with the values of one rank after a step."""
    return OWN_HEAD.pack(step, len(data), _own_checksum(step, data)) + data


def own_in(content: bytes) -> tuple[int, bytes] | None:
    """Return step and values of one rank in a file; None: they are torn or damaged."""
    if len(content) < OWN_HEAD.size:
        return None
    step, size, checksum = OWN_HEAD.unpack_from(content)
    data = content[OWN_HEAD.size : OWN_HEAD.size + size]
    return (step, data) if len(data) == size and checksum == _own_checksum(step, data) else None


def _own_checksum(step: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(step.to_bytes(8, "little")))


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
    found = state_head(head) if name.startswith(COPY) else None
    return None if found is None else found.step
