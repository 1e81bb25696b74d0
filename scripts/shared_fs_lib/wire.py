"""What travels between a node and who runs a program on it: a header, then frames."""

from __future__ import annotations

import enum
import json
import socket
import struct
from typing import Any

HEAD = struct.Struct("!BI")  # what it is, length of what follows
CHUNK = 1 << 16


class Frame(enum.IntEnum):
    """What a frame holds."""

    REQUEST = 0  # JSON: argv, cwd, env
    STDIN = 1  # empty: end of input
    STDOUT = 2
    STDERR = 3
    EXIT = 4  # JSON: the exit code


def send(connection: socket.socket, frame: Frame, data: bytes) -> None:
    """Send one frame."""
    connection.sendall(HEAD.pack(frame, len(data)) + data)


def send_json(connection: socket.socket, frame: Frame, value: Any) -> None:
    """Send one frame of JSON."""
    send(connection, frame, json.dumps(value).encode())


def receive(connection: socket.socket) -> tuple[Frame, bytes]:
    """Receive one frame.

    Raises:
        EOFError: the other side is gone.
    """
    frame, length = HEAD.unpack(_exactly(connection, HEAD.size))
    return Frame(frame), _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
