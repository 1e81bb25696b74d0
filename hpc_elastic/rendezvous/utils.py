"""The user's description of a rendezvous, and a timer; with the names of torch's ``rendezvous.utils``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Protocol

from hpc_elastic.clock import SystemClock

_MOMENT_S = 1.0  # a call under way may need a lock that the thread dropping the timer holds

__all__ = [
    "_PeriodicTimer",
    "_delay",
    "_matches_machine_hostname",
    "_parse_rendezvous_config",
    "_try_parse_port",
    "parse_rendezvous_endpoint",
]

_SHORTEST_S = 0.01
_PORT = r"[0-9]{1,5}"
_HOST = r"[\w.:-]+"


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
    return int(text) if re.fullmatch(_PORT, text or "", re.ASCII) else None


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
    if not re.fullmatch(_HOST, host):
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


class Duration(Protocol):
    """A `datetime.timedelta`, for code that is not to load `datetime`."""

    def total_seconds(self) -> float:
        """Return the length [s]."""
        ...


def seconds(duration: float | Duration) -> float:
    """Return a duration in seconds."""
    return float(duration) if isinstance(duration, (int, float)) else duration.total_seconds()


class _TimerState:
    """The data of the timer and its thread; the thread does not keep the timer alive."""

    def __init__(self, interval_s: float, call: Callable[[], object]) -> None:
        self.interval_s = interval_s
        self.call = call
        self.stop = threading.Event()
        self.error: Exception | None = None


class PeriodicTimer:
    """Calls a function once per interval until it is cancelled or forgotten.

    A function that fails is called again at the next interval; `error` holds its last exception.

    Args:
        interval: time between two calls, as a timedelta or in seconds.
        function: called at each interval.
        args: its arguments.
        kwargs: its named arguments.
    """

    def __init__(
        self, interval: float | Duration, function: Callable[..., object], *args: Any, **kwargs: Any
    ) -> None:
        self._name: str | None = None
        self._thread: threading.Thread | None = None
        self._shared = _TimerState(seconds(interval), lambda: function(*args, **kwargs))

    @property
    def name(self) -> str | None:
        """The name of the thread, if it was given one."""
        return self._name

    @property
    def error(self) -> Exception | None:
        """The exception of the last call; None if it succeeded."""
        return self._shared.error

    def set_name(self, name: str) -> None:
        """Name the thread.

        Raises:
            RuntimeError: it runs already.
        """
        if self._thread:
            raise RuntimeError("The timer has already started.")
        self._name = name

    def start(self) -> None:
        """Start calling; the first call is one interval away.

        Raises:
            RuntimeError: the timer was started before.
        """
        if self._thread:
            raise RuntimeError("The timer has already started.")
        self._thread = threading.Thread(
            target=_run, name=self._name or "PeriodicTimer", args=(self._shared,), daemon=True
        )
        import weakref  # noqa: PLC0415 - an agent on a run directory has no such timer

        forgotten = weakref.finalize(self, _end, self._shared, self._thread)
        forgotten.atexit = False
        self._thread.start()

    def is_alive(self) -> bool:
        """Tell whether the thread runs in this process; after a fork it does not run in the child."""
        return self._thread is not None and self._thread.is_alive()

    def cancel(self, timeout_s: float | None = None) -> None:
        """Stop calling, and wait for a call that is under way, at most so long [s]."""
        self._shared.stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def _end(shared: _TimerState, thread: threading.Thread) -> None:
    """End the thread of a timer without references; its last holder waits only for a moment."""
    shared.stop.set()
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(_MOMENT_S)


def _run(shared: _TimerState) -> None:
    while not shared.stop.wait(shared.interval_s):
        try:
            shared.call()
        except Exception as error:  # noqa: BLE001 - a timer does not end because one call failed
            shared.error = error
        else:
            shared.error = None


def _delay(seconds: float | tuple[float, float]) -> None:
    """Sleep [s], or for a random time between two bounds; less than 10 ms is not slept."""
    import random  # noqa: PLC0415 - rare

    length = random.uniform(*seconds) if isinstance(seconds, tuple) else seconds  # noqa: S311 - no secret
    if length >= _SHORTEST_S:
        SystemClock().sleep(length)


_PeriodicTimer = PeriodicTimer
_matches_machine_hostname = matches_this_machine
_parse_rendezvous_config = parse_rendezvous_config
_try_parse_port = try_parse_port
