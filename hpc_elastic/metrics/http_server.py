"""The HTTP servers of agents and workers, for a site that watches its services; imported only on request."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any

MOST_OPEN = 32
"""Connections at a time; a client needs one, for a moment."""
SLOW_CLIENT_S = 5.0
"""A client that has not sent its request by then is let go [s]."""


class FewConnections(ThreadingMixIn):
    """Serves each connection in a thread, a few at a time: one more ends the one that is open for longest.

    Every user of the machine can connect. The limit holds for a user who opens many connections and sends
    no request, so that this process keeps its file descriptors and threads.
    """

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._lock = threading.Lock()
        self._open: deque[socket.socket] = deque()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread."""
        with self._lock:
            self._open.append(request)
            oldest = self._open.popleft() if len(self._open) > MOST_OPEN else None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock, suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)  # type: ignore[misc] # of the server beside this class

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that goes away in the middle is its own affair."""


def make_server(address: str, port: int, answer: Callable[[], tuple[int, str]]) -> HTTPServer:
    """Return a server that listens and answers GET and HEAD for any path.

    Args:
        address: where to listen.
        port: where to listen; 0 takes a free one.
        answer: returns the HTTP status and the text.

    Raises:
        OSError: it cannot listen there.
        OverflowError: there is no such port.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version = "hpc_elastic"
        sys_version = ""
        timeout = SLOW_CLIENT_S

        def do_GET(self) -> None:
            status, text = answer()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - named so by http.server

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by http.server
            """Log nothing: clients ask every few seconds."""

    class Server(FewConnections, HTTPServer):
        def server_bind(self) -> None:
            """Bind without asking a name server for this host's full name."""
            super(HTTPServer, self).server_bind()
            self.server_name, self.server_port = address, self.socket.getsockname()[1]

    return Server((address, port), Handler)
