"""The HTTP side of the health check; imported only where somebody asks for one."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


def make_server(
    address: str, port: int, answer: Callable[[], tuple[int, str]], slow_client_s: float
) -> HTTPServer:
    """Return a server that listens and answers GET and HEAD, whatever the path.

    Args:
        address: where to listen.
        port: where to listen; 0 takes a free one.
        answer: returns the HTTP status and the text.
        slow_client_s: a client that has not sent its request by then is let go [s].

    Raises:
        OSError: it cannot listen there.
        OverflowError: there is no such port.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version = "hpc_elastic"
        sys_version = ""
        timeout = slow_client_s

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
            """Log nothing: whoever watches asks every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def server_bind(self) -> None:
            """Bind without asking a name server for this host's full name."""
            super(HTTPServer, self).server_bind()
            self.server_name, self.server_port = address, self.socket.getsockname()[1]

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing: a client that goes away in the middle is its own affair."""

    return Server((address, port), Handler)
