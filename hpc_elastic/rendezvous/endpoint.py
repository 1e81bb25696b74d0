"""Reading the user's description of a rendezvous: endpoint and options."""

from __future__ import annotations

import re

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_HOST = re.compile(r"[\w.:-]+")


def parse_rendezvous_config(text: str) -> dict[str, str]:
    """Return the options in ``key=value,key=value``; a value may hold ``=``.

    Raises:
        ValueError: a key or a value is missing.
    """
    config: dict[str, str] = {}
    if not text.strip():
        return config
    for option in text.split(","):
        key, _, value = (part.strip() for part in option.partition("="))
        if not key:
            raise ValueError(
                "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>."
            )
        if not value:
            raise ValueError(f"The rendezvous configuration option '{key}' must have a value specified.")
        config[key] = value
    return config


def try_parse_port(text: str) -> int | None:
    """Return the port number that a text is, or None if it is none."""
    return int(text) if _PORT.fullmatch(text or "") else None


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Return host and port of an endpoint: ``host``, ``host:port``, ``::1``, ``[::1]`` or ``[::1]:port``.

    An IPv6 address without brackets is an address, never an address with a port.

    Args:
        endpoint: the value of the user; ``localhost`` if empty.
        default_port: the port if the endpoint has none.

    Raises:
        ValueError: the port is none, or the host is neither a name nor an address.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    host, port_text = _split(text)
    port = default_port
    if port_text is not None:
        number = try_parse_port(port_text)
        if number is None or number >= 1 << 16:
            raise ValueError(
                f"The port number of the rendezvous endpoint '{text}' must be an integer between 0 and 65536."
            )
        port = number
    if not _HOST.fullmatch(host):
        raise ValueError(
            f"The hostname of the rendezvous endpoint '{text}' must be a dot-separated list of "
            "labels, an IPv4 address, or an IPv6 address."
        )
    return host, port


def _split(text: str) -> tuple[str, str | None]:
    """Return the host without brackets, and the text in the place of the port, None if there is none."""
    if text.startswith("[") and text.endswith("]"):
        return _without_brackets(text), None
    if is_ipv6(text):
        return text, None
    host, colon, port = text.rpartition(":")
    return (_without_brackets(host), port) if colon else (text, None)


def _without_brackets(host: str) -> str:
    inside = len(host) > 1 and host[0] == "[" and host[-1] == "]"
    return host[1:-1] if inside else host


def is_ipv6(text: str) -> bool:
    """Tell whether a text is an IPv6 address without brackets."""
    import ipaddress  # noqa: PLC0415 - 5 ms

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def matches_this_machine(host: str) -> bool:
    """Tell whether a host name or address is this machine's.

    Does not guarantee to know every alias and every address of a second network card.
    """
    import ipaddress  # noqa: PLC0415 - 5 ms
    import socket  # noqa: PLC0415 - 5 ms

    try:
        address = str(ipaddress.ip_address(host))
        if ipaddress.ip_address(host).is_loopback:
            return True
    except ValueError:
        address = ""
    this_host = socket.gethostname()
    if host in ("localhost", this_host):
        return True
    theirs = {found[1] for found in _look_up(host)} | {address} - {""}
    return any(host == name or ip in theirs for name, ip in _look_up(this_host))


def _look_up(host: str) -> list[tuple[str, str]]:
    """Return canonical names and addresses of a host; none if its name is not known."""
    import socket  # noqa: PLC0415 - 5 ms

    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    except (ValueError, OSError):
        return []
    return [(name, str(address[0])) for _, _, _, name, address in found]
