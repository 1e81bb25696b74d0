"""A look at a run reads each of its files once, however many rounds and nodes it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Cause, Entry, Member, RoundEnded, RoundFormed
from hpc_elastic.record.run_log import read_records
from tests.cli.recorded_runs import EPOCH, STARTED, paths, write, write_facts

__all__ = ["paths"]

MANY = tuple(Member(f"n{number}.1", f"n{number}", 8) for number in range(512))
COUNTED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from hpc_elastic.cli import app
app.run([{command!r}, {root!r}])
print(json.dumps(opened), file=sys.stderr)
"""


def long_run(paths: RunPaths) -> None:
    """Write twenty rounds of 512 nodes, all with the same members."""
    entries: list[tuple[float, Entry]] = [(0.0, STARTED)]
    for number in range(1, 21):
        at = 1000.0 * number
        entries.append((at, RoundFormed(number, EPOCH, MANY, "n1", 1, None)))
        entries.append((at + 900, RoundEnded(number, Cause.CRASH, (f"n{number}",), {"message": str(number)})))
    write(paths, *entries)
    write_facts(paths, *((number, 1000.0 * number + 500, 2 * number, 10) for number in range(1, 21)))


@pytest.mark.parametrize("command", ["status", "explain", "timeline"])
def test_each_file_is_read_once(paths: RunPaths, command: str) -> None:
    """No command opens a record of the journal, or a file of the account, a second time."""
    long_run(paths)
    code = COUNTED.format(command=command, root=paths.root)
    argv = [sys.executable, "-c", code]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=150, env=environ)
    opened = Counter(json.loads(done.stderr.splitlines()[-1]))
    records = [str(path) for path in Path(paths.journal).glob("*/*")]
    assert 41 == len(records)
    assert {1} == {opened[path] for path in records}
    assert all(opened[str(path)] <= 1 for path in Path(paths.account).iterdir())


def test_rounds_with_the_same_members_share_them(paths: RunPaths) -> None:
    """The members of a round that are those of the round before are checked, and kept, once."""
    long_run(paths)
    formed = [one.entry for one in read_records(paths) if isinstance(one.entry, RoundFormed)]
    assert MANY == formed[0].members
    assert 1 == len({id(entry.members) for entry in formed})
