"""Timers, metrics, events and utils do what torch's do: the same calls, the same outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.like_torch import same_calls

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        find_spec("torch") is None, reason="could not find torch"
    ),  # importing it takes seconds
]
REPOSITORY = Path(__file__).parents[2]
MIXED = """
import os, sys, threading, time
from importlib import import_module
ours, theirs = (import_module(f"{package}.timer") for package in ("hpc_elastic", "torch.distributed.elastic"))
clients, servers = (ours, theirs) if sys.argv[1] == "torch-server" else (theirs, ours)
expired = threading.Event()
path = sys.argv[2]
def log_event(name, _):
    if name == "timer expired":
        expired.set()
server = servers.FileTimerServer(path, "run", 0.01, log_event=log_event)
server.start()
clients.configure(clients.FileTimerClient(path, signal=0))
with clients.expires(after=0.01):
    assert expired.wait(120)
server.run_once()
print(server._request_count, server._timers)
"""


def _printed(*argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def _outcomes(package: str) -> dict[str, Any]:
    return dict(json.loads(_printed("-m", same_calls.__name__, package)))


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what came of the calls to torch, and to this package."""
    return _outcomes("torch.distributed.elastic"), _outcomes("hpc_elastic")


@pytest.mark.parametrize("name", sorted(same_calls.calls()))
def test_the_same_calls_end_the_same(outcomes: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    """Results, printed lines, JSON and errors are those of torch."""
    theirs, ours = outcomes
    assert theirs[name] == ours[name]


@pytest.mark.parametrize("how", ["torch-server", "torch-client"])
def test_clients_and_servers_understand_each_other(tmp_path: Path, how: str) -> None:
    """A script that still imports torch's client works with this package's server, and the other way."""
    assert "2 {}\n" == _printed("-c", MIXED, how, str(tmp_path / "pipe"))
