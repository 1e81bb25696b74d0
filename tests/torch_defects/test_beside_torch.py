"""The same few things done with torch and with this package: theirs goes wrong as recorded, ours right."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.multiprocessing.waiting import wait_gone
from tests.node.agents import is_running, wait_for

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TORCHRUN = "torch.distributed.run"
OURS = "hpc_elastic.run"
FAILS = """
import os, sys, time
from pathlib import Path
ready = Path(sys.argv[1], "ready")
if os.environ["RANK"] == "1":
    while not ready.exists(): time.sleep(0.01)
    sys.exit(7)
ready.touch()
time.sleep(600)
"""
STAYS = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1], "part").write_text(str(os.getpid()))
Path(sys.argv[1], "part").rename(Path(sys.argv[1], "pid"))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _with_torch() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")


def start(module: str, folder: Path, worker: str, workers: int) -> subprocess.Popen[str]:
    """Start a launcher of one node."""
    script = folder / "worker.py"
    script.write_text(worker)
    where = ["--rdzv-endpoint", f"{folder}/runs"] if module == OURS else ["--rdzv-endpoint", "127.0.0.1:0"]
    backend = "shared_fs" if module == OURS else "c10d"
    argv = [
        *(sys.executable, "-m", module, "--nnodes", "1", "--nproc-per-node", str(workers)),
        *("--rdzv-backend", backend, *where, "--rdzv-id", "side", "--max-restarts", "0"),
        *(str(script), str(folder)),
    ]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_workers_exit_code(tmp_path: Path) -> None:
    """Theirs ends with 1 and a traceback, and lists the sibling that it has ended; ours, with 7, does not."""
    outputs, codes = {}, {}
    for module in (TORCHRUN, OURS):
        folder = tmp_path / module
        folder.mkdir()
        launcher = start(module, folder, FAILS, 2)
        outputs[module] = launcher.communicate(timeout=150)[0]
        codes[module] = launcher.returncode
    assert {TORCHRUN: 1, OURS: 7} == codes
    assert {TORCHRUN: True, OURS: False} == {module: "Traceback" in said for module, said in outputs.items()}
    assert "exitcode  : -15" in outputs[TORCHRUN].partition("Root Cause")[0]
    assert not re.search("-15|SIGTERM", outputs[OURS])
    assert "rank 0" not in outputs[OURS].partition("Root Cause")[2]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Give the pid of the only worker of each launcher, which is then killed; ends what is left."""
    pids = {}
    for module in (TORCHRUN, OURS):
        folder = tmp_path / module
        folder.mkdir()
        launcher = start(module, folder, STAYS, 1)
        file = folder / "pid"
        wait_for(file.exists, f"the worker of {module}")
        pids[module] = int(file.read_text())
        with launcher:
            launcher.kill()
    yield pids
    for pid in pids.values():
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_launchers_worker(workers: dict[str, int]) -> None:
    """Their worker lives on, ours ends."""
    wait_gone(workers[OURS])
    assert is_running(workers[TORCHRUN])


def test_error_files_ranks_and_weight() -> None:
    """Theirs raises for what a dying worker leaves, shares one mapping, and loads a thousand modules."""
    script = str(Path(__file__).with_name("torch_calls.py"))
    told = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, timeout=150)
    found = json.loads(told.stdout)
    assert {"empty": "JSONDecodeError", "cut": "JSONDecodeError", "foreign": "KeyError"} == {
        name: found[name] for name in ("empty", "cut", "foreign")
    }
    assert ("ValueError", True) == (found["rank 10"], found["shared"])
    assert 1000 < found["modules"]
