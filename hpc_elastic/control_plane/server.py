"""The HTTP server of a worker, on a unix socket that only this user can open."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from string import Template
from urllib.parse import parse_qsl, urlsplit

from hpc_elastic.control_plane.handlers import NOT_FOUND, HandlerAnswer, HandlerCall, answer, handler_names
from hpc_elastic.errors import InputError
from hpc_elastic.typed_json import whole_number

_FIRST_PAGE = '<h1>torch.distributed.WorkerServer</h1>\n<a href="/handler/">Handler names</a>\n'
_PLACE = "/handler/"
_MAX_PATH = 107  # bytes, of a unix socket
_MAX_BODY = 2**20  # bytes
_SLOW_CLIENT_S = 10.0  # a client that has sent no request by then is disconnected
_TOO_LARGE = 413


class WorkerServer:
    """Answers requests in threads of its own until it is shut down.

    Args:
        path: of the socket; ``${rank}`` and ``${local_rank}`` are replaced. A missing directory is made
            for this user alone. The socket of a dead process there is replaced.

    Raises:
        InputError: no socket can have that path.
        RuntimeError: another process answers there.
    """

    def __init__(self, path: str) -> None:
        self.path = _with_ranks(path)
        self._listener = _listen(self.path)
        self._inode = os.stat(self.path).st_ino

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._serve, name="hpc_elastic worker server", daemon=True).start()

    def shutdown(self) -> None:
        """Take the socket away and answer no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        with suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=_converse, args=(connection,), daemon=True).start()


def _with_ranks(path: str) -> str:
    environ = os.environ  # noqa: TID251 - here a process learns its place
    known = {"rank": environ.get("RANK"), "local_rank": environ.get("LOCAL_RANK")}
    return Template(path).safe_substitute({name: value for name, value in known.items() if value is not None})


def _listen(path: str) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_PATH:
        raise InputError(
            f"the path of a socket has at most {_MAX_PATH} bytes, not {len(os.fsencode(path))}: {path}",
            where="TORCH_WORKER_SERVER_SOCKET",
            fix="take a shorter one, for example below /tmp",
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
        _remove_dead(path)
        listener.bind(path)
        os.chmod(path, 0o600)  # no client can connect before `listen`
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise InputError(
            f"no socket can be made at {path}: {error.strerror or error}",
            where="TORCH_WORKER_SERVER_SOCKET",
            fix="give a path in a directory of your own",
        ) from error
    except RuntimeError:
        listener.close()
        raise
    return listener


def _remove_dead(path: str) -> None:
    """Remove a socket on which no process listens any more.

    Raises:
        RuntimeError: a process does.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        return  # binding will say that it is there
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(0)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # so many wait to be answered that no more can: it is there, and perhaps it hangs
    raise RuntimeError(
        f"{path} already exists, and another process answers there: each worker needs a socket of its own, "
        "such as TORCH_WORKER_SERVER_SOCKET=/tmp/me/worker-${rank}.sock"
    )


def _converse(connection: socket.socket) -> None:
    with connection, suppress(OSError):  # a client that disconnects early gets no answer
        _Conversation(connection, ("", 0), None)  # type: ignore[arg-type] # it has no use for a server


class _Conversation(BaseHTTPRequestHandler):
    """One request and its answer."""

    server_version = "hpc_elastic"
    sys_version = ""
    timeout = _SLOW_CLIENT_S

    def do_GET(self) -> None:
        path, response = urlsplit(self.path).path, HandlerAnswer()
        if path == "/":
            response.set_content(_FIRST_PAGE, "text/html")
        elif path == _PLACE:
            response.set_content(json.dumps(handler_names()), "application/json")
        else:
            response.set_status(NOT_FOUND)
        self._send(response)

    do_HEAD = do_GET  # noqa: N815 - named so by http.server

    def do_POST(self) -> None:
        asked, response = urlsplit(self.path), HandlerAnswer()
        length = self.headers.get("Content-Length", "0")
        size = whole_number(length)
        name = asked.path.removeprefix(_PLACE)
        if not asked.path.startswith(_PLACE) or "/" in name:
            response.set_status(NOT_FOUND)
        elif size is None or size > _MAX_BODY:
            response.set_status(_TOO_LARGE)
            response.set_content(f"a request has at most {_MAX_BODY} bytes, not {length}", "text/plain")
        else:
            params = dict(reversed(parse_qsl(asked.query, keep_blank_values=True)))  # the first one counts
            response = answer(name, HandlerCall(self.rfile.read(size), params))
        self._send(response)

    def _send(self, response: HandlerAnswer) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by http.server
        """Log nothing: a worker's output is its own."""
