"""The stand-in for sbatch, srun, squeue, sacct, scontrol, scancel and sinfo: passes its call on.

It runs by itself, as ``python -IS client.py SOCKET PROGRAM [argument ...]``, and imports nothing of the
package, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
_CHUNK = 65536
_LOST = "Unable to contact slurm controller (connect failure)"


def _say(text: str, fd: int) -> None:
    data = text.encode("utf-8", "surrogateescape")
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError:  # there is no reader
            return


def _request(program: str, words: list[str]) -> dict[str, Any]:
    return {
        "program": program,
        "words": words,
        "environ": dict(os.environ),  # noqa: TID251 - Slurm's commands look at all of it
        "cwd": os.getcwd(),
    }


class WireLine:
    """Lines of JSON over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send one line."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def lines(self) -> list[dict[str, Any]] | None:
        """Return the whole lines that have come; None when the other side is gone."""
        data = self.connection.recv(_CHUNK)
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        found = [json.loads(line) for line in whole]
        return found if found or data else None

    def answer(self) -> dict[str, Any] | None:
        """Wait for a line; None when the other side is gone."""
        while True:
            found = self.lines()
            if found is None:
                return None
            if found:
                return dict(found[0])


def _ask(line: WireLine, program: str, words: list[str]) -> int:
    line.send(_request(program, words))
    answer = line.answer()
    if answer is not None and answer.get("need_stdin"):
        line.send({"stdin": sys.stdin.buffer.read().decode("utf-8", "surrogateescape")})
        answer = line.answer()
    if answer is None:
        return _lost(program)
    _say(answer["out"], 1)
    _say(answer["err"], 2)
    return int(answer["code"])


def _srun(line: WireLine, words: list[str]) -> int:
    """Start tasks, pass signals on, and end when they have ended."""
    hear, heard = os.pipe()
    os.set_blocking(hear, False)
    os.set_blocking(heard, False)
    signal.set_wakeup_fd(heard, warn_on_full_buffer=False)
    for passed_on in _PASSED_ON:
        signal.signal(passed_on, lambda _number, _frame: None)
    data = json.dumps(_request("srun", words)).encode() + b"\n"
    sent = socket.send_fds(line.connection, [data], [0, 1, 2])
    if sent < len(data):  # else it may be refused already, and its connection closed
        line.connection.sendall(data[sent:])
    while True:
        here = line.connection.fileno()
        ready = select.select([here, hear], [], [])[0]
        for number in os.read(hear, _CHUNK) if hear in ready else b"":
            with contextlib.suppress(OSError):  # it has ended; its exit code can still be read
                line.send({"signal": number})
        code = _hear(line) if here in ready else None
        if code is not None:
            return code


def _hear(line: WireLine) -> int | None:
    """Print the controller's answer; return the exit code once it has come."""
    found = line.lines()
    if found is None:
        return _lost("srun")
    for message in found:
        _say(message["err"], 2)
        if message["code"] is not None:
            return int(message["code"])
    return None


def _lost(program: str) -> int:
    prefix = {"squeue": "slurm_load_jobs error", "scontrol": "slurm_load_jobs error"}.get(
        program, f"{program}: error"
    )
    _say(f"{prefix}: {_LOST}\n", 2)
    return 1


def main(argv: list[str]) -> int:
    """Be one of the programs.

    Args:
        argv: the controller's socket, the program's name, its arguments.
    """
    place, program, *words = argv
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place)
        line = WireLine(connection)
        return _srun(line, words) if program == "srun" else _ask(line, program, words)
    except OSError:
        return _lost(program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
