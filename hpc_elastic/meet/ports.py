"""Choosing the port on which the workers' process group meets."""

from __future__ import annotations

import os

# Ports below the range from which the kernel takes outgoing ones, so that nobody else's connection
# takes the port between its choice and the moment rank 0 listens on it.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a TCP port that nobody on this machine listens on now."""
    import socket  # noqa: PLC0415 - 5 ms

    for _ in range(100):
        port = _PORTS[int.from_bytes(os.urandom(4), "little") % len(_PORTS)]
        with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return 29500
