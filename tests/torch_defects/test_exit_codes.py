"""The launcher ends with the worker's own code, and what it prints begins with the root cause.

Elsewhere the code is always 1, and siblings that the launcher itself has ended are listed as
failures above the one that failed.
"""

from __future__ import annotations

import signal
from pathlib import Path
from textwrap import indent

import pytest

from tests.node.agents import gone, wait_for
from tests.torch_defects.launches import MakeLaunches, wait_all

SIBLING_ENDED_BY_US = f"""
if os.environ["RANK"] == "1":
{indent(wait_all(".ready", 1) + "CODE", "    ")}
import signal, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
open(file + ".ready", "w").close()
time.sleep(600)
"""

PATIENT = ("--lease", "60")

TWO_FAIL = """
from hpc_elastic.multiprocessing.errors import ErrorHandler, record
import time

@record
def main():
    open(file + ".ready", "w").close()
    while not os.path.exists(os.path.join(place, "go")):
        time.sleep(0.001)
    if os.environ["RANK"] == "0":
        while not os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"].replace("/0/error", "/1/error")):
            pass
        raise ValueError("second")
    try:
        raise KeyError("first")
    except KeyError as error:
        ErrorHandler().record_exception(error)
    while True:  # a long way down
        if os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"].replace("/1/error", "/0/error")):
            os._exit(4)

main()
"""


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        ("sys.exit(7)", 7, "exitcode  : 7 (pid: "),
        ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL, "SIGKILL"),
        ("raise KeyError('lost key')", 1, "KeyError: 'lost key'"),
    ],
    ids=["exit", "signal", "exception"],
)
def test_the_workers_code_and_the_root_cause(
    make: MakeLaunches, code: str, expected: int, words: str
) -> None:
    """One worker fails by itself, its sibling because it was told to end: only the first is a failure."""
    launches = make(SIBLING_ENDED_BY_US.replace("CODE", code))
    launches.start(0, "--nproc-per-node", "2", "--redirects", "2")
    output = launches.output(0)
    assert expected == launches.code(0)
    _, _, told = output.partition("Root Cause")
    assert "rank      : 1 (local_rank: 1)" in told
    assert words in told
    assert "Other failures" not in output
    assert "rank 0" not in told


def test_who_failed_first_is_the_root_cause(make: MakeLaunches) -> None:
    """Of failures within one second the one that was recorded first counts, though it ended last."""
    launches = make(TWO_FAIL)
    agent = launches.start(0, "--nproc-per-node", "2", *PATIENT)
    launches.files(".ready", 2)
    agent.send_signal(signal.SIGSTOP)  # else it may end the one before that has failed by itself
    (Path(launches.paths.logs) / "go").touch()
    wait_for(lambda: gone(launches.workers(1)), "both failures")
    agent.send_signal(signal.SIGCONT)
    output = launches.output(0)
    assert "KeyError: 'first'" in output.partition("Root Cause")[2]
    assert "second" not in output.partition("Root Cause")[2]
    assert 4 == launches.code(0)
