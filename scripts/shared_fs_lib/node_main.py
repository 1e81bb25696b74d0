"""The first program of a node, started by `launch`, and in a kernel of its own also its PID 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from . import exec_server, node_setup
from .node_setup import Plan

HELPER = "_node"
"""Name of the command that starts these programs; not for people."""


def main(words: list[str]) -> NoReturn:
    """Run one part: `outside PLAN` in new namespaces, `inside PLAN` as PID 1 of a kernel of its own."""
    part, file = words[:2]  # a kernel may have added words of its own
    plan: Plan = json.loads(Path(file).read_text())
    if part == "inside":
        node_setup.set_up_kernel(plan)
        _serve_and_reap()
    _wait_for_go()
    if plan["kernel"]:
        _run_kernel(plan)
    node_setup.set_up_namespaces(plan)
    _let_go_of_stdio(plan)
    _serve_and_reap()


def _wait_for_go() -> None:
    """Say this process's pid as the machine sees it; go on once it is written down."""
    # /proc still belongs to the machine's PID namespace.
    print(os.readlink("/proc/self"), flush=True)
    if sys.stdin.readline() != "go\n":
        sys.exit("the booting command gave up")


def _run_kernel(plan: Plan) -> NoReturn:
    """Run a user-mode Linux as this process's child; its memory is a file in a /dev/shm of its own.

    Not in this process's place: a kernel that panics aborts, which is lost on PID 1 of a namespace.
    """
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    node_setup.mount("tmpfs", "/dev/shm", "mode=1777")  # noqa: S108 - a private one
    _let_go_of_stdio(plan)
    sys.exit(subprocess.run(plan["kernel"], check=False).returncode)


def _let_go_of_stdio(plan: Plan) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _serve_and_reap() -> NoReturn:
    """Serve in a child, so that this process can collect all orphans of the node."""
    server = os.fork()
    if server == 0:
        exec_server.serve()
    while os.wait()[0] != server:
        pass
    sys.exit("the service on this node has ended")
