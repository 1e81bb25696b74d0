"""Having workers print where they are, from a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hpc_elastic.control_plane.__main__ import main, marked_processes
from hpc_elastic.processes.linux import MARKER_ENV

WORKER = """
import sys
from hpc_elastic.control_plane import worker_main
def busy():
    print("ready", flush=True)
    sys.stdin.read()
if sys.argv[1] == "can":
    busy = worker_main()(busy)
busy()
"""


def _worker(what: str) -> subprocess.Popen[str]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARKER_ENV: "mark-of-this-test"},
    )
    assert worker.stdout is not None
    assert "ready\n" == worker.stdout.readline()
    return worker


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    """Return a worker that can answer and one that cannot."""
    started = [_worker("can"), _worker("cannot")]
    yield started
    for worker in started:
        worker.kill()
        worker.communicate()


def test_workers_print_where_they_are(
    workers: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that can do; those that cannot are left alone and go on."""
    can, cannot = workers
    assert 0 == main([str(can.pid), str(cannot.pid)])
    said = capsys.readouterr().out
    assert f"asked 1 of 2 processes for their stacks, which are in their stderr: {can.pid}\n" == said
    assert cannot.poll() is None
    _, printed = can.communicate("")
    assert "in busy" in printed


def test_nobody_who_can_answer(
    workers: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has not opted in is named as the reason."""
    assert 1 == main([str(workers[1].pid)])
    assert "asked 0 of 1 processes" in capsys.readouterr().out


def test_workers_are_found_by_their_mark(workers: list[subprocess.Popen[str]]) -> None:
    """All processes below an agent are found, whoever has started them; others are not."""
    found = set(marked_processes())
    assert {worker.pid for worker in workers} <= found
    assert (os.getpid() in found) == (MARKER_ENV in os.environ)


@pytest.mark.parametrize("word", ["-1", "0", "all", "1.5"])
def test_what_is_no_process_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No process group and nobody else is ever asked by mistake."""
    assert 2 == main(["5", word])
    assert f"{word!r} is no process id" in capsys.readouterr().err
