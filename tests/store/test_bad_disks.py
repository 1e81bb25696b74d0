"""Small file systems that run full: what is told, and that the run goes on when there is space again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Decision
from tests.store.surroundings import agent, hpc_elastic, on_small_disk, run, why_no_mounts

pytestmark = pytest.mark.slow

WRITE_UNTIL_FULL = """
import os, sys
from hpc_elastic.errors import StoreError
from hpc_elastic.store.shared_dir import SharedDirStore
root = os.path.join(sys.argv[1], "run")
os.makedirs(root + "/journal/000000"); os.makedirs(root + "/nodes")
store, number = SharedDirStore(root), 0
store.put("nodes", "a", b"old")
try:
    while number < 1000 and store.append("journal", number + 1, b"x" * 2000): number += 1
except StoreError as error: print(error)
for name in range(int(sys.argv[2])):  # what a hard link needs may still do for a file
    try: store.mark("nodes", f"m{name}")
    except StoreError: break
try: store.put("nodes", "a", b"y" * 100_000); print("put went through")
except StoreError as error: print(error)
print(store.get("nodes", "a"), len(store.read_after("journal", 0)) == number)
print([name for _, _, names in os.walk(root) for name in names if name.startswith(".")])
for name in range(number // 2, number + 1):
    if name: os.unlink(f"{root}/journal/000000/{name:08d}")
print(store.append("journal", number + 1, b"there is space again"))
"""


@pytest.fixture(autouse=True)
def _needs_mounts() -> None:
    reason = why_no_mounts()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(("options", "marks"), [("size=64k", 0), ("nr_inodes=32", 100)])
def test_a_full_store_keeps_what_it_has(tmp_path: Path, options: str, marks: int) -> None:
    """Out of space or out of inodes: told in one line, nothing torn or left, and it goes on afterwards."""
    argv = [sys.executable, "-c", WRITE_UNTIL_FULL, str(tmp_path), str(marks)]
    done = run(on_small_disk(tmp_path, options, argv))
    reason = "No space left on device (the file system is full, or out of inodes)"
    told, told_of_put, *rest = done.stdout.splitlines()
    assert told.startswith(f"{tmp_path}/run/journal/000000/")
    assert told.endswith(f": {reason}")
    assert f"{tmp_path}/run/nodes/a: {reason}" == told_of_put
    assert ["b'old' True", "[]", "True"] == rest


SCENARIO = """
import json, os, subprocess, sys
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_state
from hpc_elastic.store.files import replace

disk, go, agent, status = *sys.argv[1:3], *map(json.loads, sys.argv[3:])
filler = os.path.join(disk, "filler")

def fill():
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(b"0" * 512): pass
        except OSError as error: print("filled:", error.strerror, flush=True)

paths = RunPaths(os.path.join(disk, "run"))
os.mkfifo(go)
child = subprocess.Popen(agent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
wait_until(lambda: read_state(paths).running is not None, "a round", timeout_s=120)
fill()
with open(go, "w"): pass  # the worker ends
lines = []
while not lines or "does not answer" not in lines[-1]:
    lines.append(child.stdout.readline())
print("".join(lines), flush=True)
asked = subprocess.run(status, capture_output=True, text=True)
print("status:", asked.returncode, asked.stdout.splitlines()[0], asked.stderr, flush=True)
os.unlink(filler)
print(child.communicate(timeout=120)[0])
print("agent:", child.returncode, read_state(paths).ending.decision.value, flush=True)
"""


def test_a_run_goes_on_when_there_is_space_again(tmp_path: Path) -> None:
    """The agent says once that the disk is full, status still answers, and the end is written later."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "worker.py"
    go = tmp_path / "go"
    script.write_text(f"open({str(go)!r}).read()\n")
    status = hpc_elastic("status", str(disk / "run"))
    argv = [
        *(sys.executable, "-c", SCENARIO, str(disk), str(go)),
        *(json.dumps(agent(disk / "run", str(script))), json.dumps(status)),
    ]
    done = run(on_small_disk(disk, "size=128k", argv))
    assert "" == done.stderr
    assert "filled: No space left on device" in done.stdout
    assert 1 == done.stdout.count("No space left on device (the file system is full, or out of inodes)")
    assert "status: 0 run: running round 1" in done.stdout
    assert f"agent: 0 {Decision.DONE.value}" in done.stdout
