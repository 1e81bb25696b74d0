"""The names of torch.distributed.elastic.utils.api: a variable that must be set, a port, arguments."""

from __future__ import annotations

import os
import socket
from string import Template
from typing import Any

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]


def get_env_variable_or_raise(env_name: str) -> str:
    """Return the value of an environment variable.

    Raises:
        ValueError: it is not set.
    """
    value = os.environ.get(env_name)  # noqa: TID251 - its purpose
    if value is None:
        raise ValueError(f"Environment variable {env_name} expected, but not set")
    return value


def get_socket_with_port() -> socket.socket:
    """Return a socket that listens on a free port of localhost, and so keeps it from others.

    Raises:
        RuntimeError: no address of localhost can be listened on; says why.
    """
    reasons = []
    for family, kind, protocol, _, _ in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM):
        try:
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            reasons.append(error)
            continue
        try:
            listener.bind(("localhost", 0))
            listener.listen(0)
        except OSError as error:
            listener.close()
            reasons.append(error)
        else:
            return listener
    raise RuntimeError(f"Failed to create a socket: {'; '.join(map(str, reasons)) or 'localhost is nowhere'}")


class macros:  # noqa: N801 - torch's name
    """The macros in the arguments of a worker."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[Any]:
        """Return arguments with ``${local_rank}`` replaced, as `string.Template` does it.

        So ``$local_rank`` is replaced, too, ``$$`` becomes ``$``, and every other name stays.

        Args:
            args: text is looked through, anything else is taken as it is.
            local_rank: its replacement.
        """
        return [
            Template(arg).safe_substitute(local_rank=local_rank) if isinstance(arg, str) else arg
            for arg in args
        ]
