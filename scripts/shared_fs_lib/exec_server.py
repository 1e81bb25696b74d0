"""Run programs on this node for those who connect.

A connection is one program: it gets its input and gives its output in frames (see `wire`).
When the connection ends first, the program and its process group are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from typing import IO, NoReturn

from . import wire
from .layout import PORT
from .wire import Frame

LAST_WORDS_S = 1.0
"""How long output is waited for after the program's end; a daemon that it left may keep the pipe."""


def serve() -> NoReturn:
    """Serve for ever."""
    with socket.create_server(("", PORT), backlog=64) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_handle, args=(connection,), daemon=True).start()


class _Output:
    """The sending half of a connection, shared by threads; silent once the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, frame: Frame, data: bytes) -> None:
        """Send one frame."""
        with self._lock, contextlib.suppress(OSError):
            wire.send(self._connection, frame, data)


def _handle(connection: socket.socket) -> None:
    with connection:
        output = _Output(connection)
        try:
            _, request = wire.receive(connection)
            program = _start(json.loads(request))
        except EOFError:
            return
        except (OSError, ValueError) as error:
            output.send(Frame.STDERR, f"cannot run it: {error}\n".encode())
            output.send(Frame.EXIT, b"127")
            return
        threading.Thread(target=_feed, args=(connection, program), daemon=True).start()
        pumps = [
            threading.Thread(target=_pump, args=(stream, frame, output), daemon=True)
            for stream, frame in ((program.stdout, Frame.STDOUT), (program.stderr, Frame.STDERR))
        ]
        for pump in pumps:
            pump.start()
        code = program.wait()
        for pump in pumps:
            pump.join(LAST_WORDS_S)
        output.send(Frame.EXIT, str(code if code >= 0 else 128 - code).encode())


def _start(request: dict[str, object]) -> subprocess.Popen[bytes]:
    argv, cwd, env = request["argv"], request["cwd"], request["env"]
    if not isinstance(argv, list) or not isinstance(cwd, str) or not isinstance(env, dict):
        raise ValueError("the request is none")  # noqa: TRY004 - it came over the wire
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _feed(connection: socket.socket, program: subprocess.Popen[bytes]) -> None:
    """Hand input on; kill what runs when the other side is gone."""
    stdin = program.stdin
    with contextlib.suppress(OSError, EOFError):
        while True:
            _, data = wire.receive(connection)
            with contextlib.suppress(BrokenPipeError):
                if stdin is not None and not stdin.closed:
                    stdin.write(data) if data else stdin.close()
    if program.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def _pump(stream: IO[bytes] | None, frame: Frame, output: _Output) -> None:
    while stream is not None and (data := stream.read(wire.CHUNK)):
        output.send(frame, data)
