"""Run a program on a node."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from devcluster_lib.errors import DevClusterError
from devcluster_lib.processes import POLL_S, ProcessId

from . import switch, wire
from .layout import PORT, Layout, control_address
from .wire import Frame

CONNECT_S = 0.3  # nobody answers a call to a node that boots; the kernel would call again after 1 s
GONE = 255
"""Exit code when a node goes down under the program, as ssh has it."""


def connect(layout: Layout, node: str, process: ProcessId, timeout_s: float) -> socket.socket:
    """Connect to a node that may still be booting.

    Raises:
        DevClusterError: it has no power, or does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while process.is_alive():
        try:
            connection = switch.connect(layout.network, (control_address(node), PORT), CONNECT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise DevClusterError(
                    f"{node} does not answer within {timeout_s:g} s; is it frozen? See {layout.log(node)}."
                ) from None
            time.sleep(POLL_S)
        else:
            connection.settimeout(None)
            return connection
    raise DevClusterError(f"{node} went down; see {layout.log(node)}.")


def run(layout: Layout, node: str, process: ProcessId, argv: Sequence[str], timeout_s: float = 30) -> str:
    """Run a program on a node and return what it printed.

    Raises:
        DevClusterError: it failed; the text has its output.
    """
    output = bytearray()
    with connect(layout, node, process, timeout_s) as connection:
        _request(connection, argv, "/", {})
        wire.send(connection, Frame.STDIN, b"")
        code = _follow(connection, process, lambda _, data: output.extend(data))
    text = output.decode(errors="replace")
    if code != 0:
        raise DevClusterError(f"`{' '.join(argv)}` on {node} ended with {code}: {text.strip()}")
    return text


def attach(layout: Layout, node: str, process: ProcessId, argv: Sequence[str], timeout_s: float = 5) -> int:
    """Run a program on a node with this process's input and output; returns its exit code."""
    streams = {Frame.STDOUT: sys.stdout.buffer, Frame.STDERR: sys.stderr.buffer}

    def show(frame: Frame, data: bytes) -> None:
        streams[frame].write(data)
        streams[frame].flush()

    with connect(layout, node, process, timeout_s) as connection:
        _request(connection, argv, os.getcwd(), {})
        threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
        return _follow(connection, process, show)


def _request(connection: socket.socket, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
    wire.send_json(connection, Frame.REQUEST, {"argv": list(argv), "cwd": cwd, "env": dict(env)})


def _follow(connection: socket.socket, process: ProcessId, show: Callable[[Frame, bytes], object]) -> int:
    """Hand output on until the program has ended or the node is gone (it sends no farewell then)."""
    try:
        power = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return GONE
    try:
        while True:
            ready, _, _ = select.select([connection.fileno(), power], [], [])
            if connection.fileno() not in ready:
                return GONE
            frame, data = wire.receive(connection)
            if frame is Frame.EXIT:
                return int(data)
            show(frame, data)
    except (EOFError, ConnectionError):
        return GONE
    finally:
        os.close(power)


def _send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        data = b"."
        while data:
            data = os.read(0, wire.CHUNK)
            wire.send(connection, Frame.STDIN, data)
