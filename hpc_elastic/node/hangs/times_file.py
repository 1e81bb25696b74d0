"""Keeps what a run has measured of its steps and sections, over restarts and requeues.

One small file per node, which only this node's agent writes. A node that has none yet takes over
what one of the others has measured.
"""

from __future__ import annotations

import json
import os

from hpc_elastic.node.setup.hang_times import Length, Lengths, decode, encode
from hpc_elastic.store import files
from hpc_elastic.typed_json import parse

_MOST_OTHERS = 4  # files of other nodes that are tried


def read_lengths(directory: str, node: str) -> tuple[dict[str, Length], tuple[int, ...]]:
    """Return what is known, and the local ranks that tick; nothing where nothing can be read.

    Args:
        directory: of all nodes' files.
        node: this node.
    """
    own = f"{node}.json"
    try:
        names = files.list_names(directory)
        for name in [own] if own in names else names[:_MOST_OTHERS]:
            lengths, ticking = decode(parse(files.read(os.path.join(directory, name)) or b"{}"))
            if lengths:
                return lengths, ticking if name == own else ()
    except (OSError, ValueError):
        pass
    return {}, ()


def write_lengths(directory: str, node: str, lengths: Lengths, ticking: tuple[int, ...]) -> bool:
    """Write this node's file; return whether that worked: it is no loss if it did not.

    Args:
        directory: of all nodes' files.
        node: this node.
        lengths: what its workers have taken.
        ticking: the local ranks that tick.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        data = json.dumps(encode(lengths, ticking)).encode()
        files.replace(os.path.join(directory, f"{node}.json"), data, durable=False)
    except OSError:
        return False
    return True
