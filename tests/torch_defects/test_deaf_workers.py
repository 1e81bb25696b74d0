"""A worker that ignores SIGTERM has the shutdown timeout and no more, on every path.

Elsewhere it has 30 seconds when a sibling has failed, whatever timeout is configured.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from textwrap import indent

import pytest

from hpc_elastic.multiprocessing import start_processes
from tests.multiprocessing import workers
from tests.multiprocessing.waiting import wait_gone, wait_line
from tests.node.agents import gone
from tests.torch_defects.launches import DEAF, MakeLaunches, wait_all

SHORT = ("--nproc-per-node", "2", "--shutdown-timeout", "0.3")
LESS_THAN_30_S = 29.0  # also on a busy machine: those 30 s would begin only after the start
FAIL = f"""
if os.environ["RANK"] == "0":
{indent(wait_all(".deaf", 1) + "sys.exit(3)", "    ")}
{DEAF}
"""


def in_round_1(code: str) -> str:
    """Return code that is run in the first round only."""
    return f"if os.environ['HPC_ELASTIC_ROUND'] == '1':\n{indent(code, '    ')}"


def test_when_a_sibling_has_failed(make: MakeLaunches) -> None:
    """The launcher ends with the sibling's code as soon as the deaf worker's time is over."""
    launches = make(FAIL)
    launcher = launches.start(0, *SHORT, "--max-restarts", "0")
    assert 3 == launcher.wait(LESS_THAN_30_S)
    assert gone(launches.workers(1))


def test_before_a_restart(make: MakeLaunches) -> None:
    """The next round begins as soon as the deaf worker's time is over."""
    launches = make(in_round_1(FAIL))
    launcher = launches.start(0, *SHORT, "--max-restarts", "1")
    assert 0 == launcher.wait(LESS_THAN_30_S)
    assert gone(launches.workers(1))


def test_when_a_node_joins(make: MakeLaunches) -> None:
    """A larger world begins as soon as the deaf worker of the smaller one has had its time."""
    launches = make(in_round_1(DEAF))
    flags = ("--nnodes", "1:2", "--shutdown-timeout", "0.3", "--rdzv-conf")
    started = [launches.start(0, *flags, "last_call_timeout=0.1")]
    launches.files(".deaf", 1)
    started.append(launches.start(1, *flags, "last_call_timeout=30"))  # till the first is back
    assert [0, 0] == [launcher.wait(LESS_THAN_30_S) for launcher in started]
    assert gone(launches.workers(1))


def test_when_the_launcher_is_told_to_end(make: MakeLaunches) -> None:
    """SIGTERM of the launcher ends it as soon as the deaf worker has had its time."""
    launches = make(DEAF)
    launcher = launches.start(0, *SHORT)
    launches.files(".deaf", 2)
    launcher.send_signal(signal.SIGTERM)
    assert 128 + signal.SIGTERM == launcher.wait(LESS_THAN_30_S)
    assert gone(launches.workers(1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_when_a_sibling_function_has_failed(method: str, tmp_path: Path) -> None:
    """Functions are stopped in the same time as programs."""
    ready, go = str(tmp_path / "ready"), str(tmp_path / "go")
    for pipe in (ready, go):
        os.mkfifo(pipe)
    context = start_processes(
        *("t", workers.deaf_or_fail, {rank: (rank, ready, go) for rank in (0, 1)}),
        start_method=method,
        log_dir=tmp_path,
        shutdown_timeout=0.3,
    )
    deaf = int(wait_line(ready))
    Path(go).write_text("fail")
    result = context.wait(LESS_THAN_30_S)
    wait_gone(deaf, 0)
    assert result is not None
    assert [1] == list(result.failures)
