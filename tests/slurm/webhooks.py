"""A real web server on the loopback interface that takes messages, and answers as a test wants."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

CERTIFICATE = Path(__file__).with_name("loopback.pem")  # of localhost, signed by itself, with its key


class Webhooks:
    """The server, and all that has come.

    Args:
        answers: the codes of the first answers; further ones are 200. A code of 0: no answer at all.
        when_asked: called as a message comes.
    """

    def __init__(self, answers: tuple[int, ...], when_asked: Callable[[], object]) -> None:
        self.came: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.seen: list[object] = []
        self.released = Event()
        self._answers = list(answers)
        self._when_asked = when_asked
        self.port = 0
        self.reason: str | None = None
        """The words of all answers; None: the usual ones."""

    def url(self, scheme: str = "http") -> str:
        """Return where messages are to go."""
        return f"{scheme}://127.0.0.1:{self.port}/hook/5ecret"

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        """Keep a message; return the code of the answer."""
        self.seen.append(self._when_asked())
        self.came.append(json.loads(body))
        self.headers.append(headers)
        return self._answers.pop(0) if self._answers else 200


@contextmanager
def webhooks(
    *answers: int, when_asked: Callable[[], object] = lambda: None, is_tls: bool = False
) -> Iterator[Webhooks]:
    """Run a server for a while."""
    hooks = Webhooks(answers, when_asked)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Take a message."""
            code = hooks.take(self.rfile.read(int(self.headers["Content-Length"])), dict(self.headers))
            if code == 0:
                hooks.released.wait()
                return
            self.send_response(code, hooks.reason)
            self.send_header("Location", hooks.url())
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:
            """Say nothing about clients that do not trust the certificate."""

    server = Server(("127.0.0.1", 0), Handler)
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    hooks.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hooks
    finally:
        hooks.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
