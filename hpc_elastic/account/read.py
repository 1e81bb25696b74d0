"""Reads the lines that agents have written for the account of a run."""

from __future__ import annotations

import os

from hpc_elastic.account.facts import WorkFact, parse_facts
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.files import list_names, read

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
            data = read(os.path.join(paths.account, name), limit=_MOST_BYTES, alone=True)
        except OSError:
            continue
        found += parse_facts(data or b"")
    return found
