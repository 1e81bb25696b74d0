"""Endpoints and options as users write them."""

from __future__ import annotations

import socket
import threading

import pytest

from hpc_elastic.rendezvous import utils
from hpc_elastic.rendezvous.utils import (
    _delay,
    _matches_machine_hostname,
    _parse_rendezvous_config,
    _PeriodicTimer,
    _try_parse_port,
    parse_rendezvous_endpoint,
)

CONFIGS = ["", "   ", "a=1", " b= x ,c=y ", "z=x=y, k = v "]
BAD_CONFIGS = ["=1", ",", "a=1,", "  , =", "a", "a=", "a=  ", "a=1,b"]
ENDPOINTS = [
    None, "", "  ", "dummy.com", "dummy.com:0", "dummy.com:123", " dummy-1.com:65535 ", "1.2.3.4",
    "1.2.3.4:5",
    "[2001:db8::1]", "[2001:db8::1]:123", "host_1",
]  # fmt: skip
BAD_ENDPOINTS = [
    "~", "dummy.com :123", "~:123", ":123", "dummy.com:", "dummy.com:x", "dummy.com:-1", "dummy.com:65536",
    "dummy.com:123456", "[::1]:x", "/tmp/rendezvous", "dummy.com:1 2",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    list(zip(CONFIGS, [{}, {}, {"a": "1"}, {"b": "x", "c": "y"}, {"z": "x=y", "k": "v"}], strict=True)),
    ids=repr,
)
def test_options(text: str, expected: dict[str, str]) -> None:
    """Options are separated by commas; blanks around names and values do not count."""
    assert expected == _parse_rendezvous_config(text)


@pytest.mark.parametrize("text", BAD_CONFIGS)
def test_options_without_name_or_value(text: str) -> None:
    """A name or a value that is missing is told."""
    with pytest.raises(ValueError, match=r"^The rendezvous configuration"):
        _parse_rendezvous_config(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("123", 123), ("99999", 99999), ("", None), ("-1", None), ("1a", None)]
)
def test_ports(text: str, expected: int | None) -> None:
    """A port is one to five digits."""
    assert expected == _try_parse_port(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ("localhost", 7)),
        (" ", ("localhost", 7)),
        ("dummy.com", ("dummy.com", 7)),
        ("dummy.com:123", ("dummy.com", 123)),
        ("[2001:db8::1]", ("2001:db8::1", 7)),
        ("[2001:db8::1]:123", ("2001:db8::1", 123)),
        ("::1", ("::1", 7)),
        ("2001:db8::1:123", ("2001:db8::1:123", 7)),
    ],
)
def test_endpoints(text: str | None, expected: tuple[str, int]) -> None:
    """Host and port; an address with colons needs brackets to have a port."""
    assert expected == parse_rendezvous_endpoint(text, 7)


@pytest.mark.parametrize("text", BAD_ENDPOINTS)
def test_endpoints_that_are_none(text: str) -> None:
    """The message names the endpoint and what is wrong."""
    with pytest.raises(ValueError, match=r"^The (hostname|port number) of the rendezvous endpoint '"):
        parse_rendezvous_endpoint(text, 7)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "127.0.0.99", socket.gethostname()])
def test_names_of_this_machine(host: str) -> None:
    """Loopback addresses and the host's own name are this machine's."""
    assert _matches_machine_hostname(host)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no-such-host.invalid", "a" * 300])
def test_names_of_others(host: str) -> None:
    """Other addresses, and names that nobody knows, are not."""
    assert not _matches_machine_hostname(host)


def test_delays() -> None:
    """Short delays are none; a pair gives the bounds."""
    _delay(0)
    _delay((0.0, 0.011))
    assert "parse_rendezvous_endpoint" in utils.__all__


def test_a_timer_calls_again_and_again() -> None:
    """A timer goes on after a call that failed, and ends when it is told to."""
    calls = threading.Semaphore(0)
    seen: list[tuple[object, ...]] = []

    def call(*args: object, **kwargs: object) -> None:
        seen.append((*args, *kwargs.values()))
        calls.release()
        if len(seen) == 1:
            raise RuntimeError("once")

    timer = _PeriodicTimer(0.001, call, 1, key=2)
    assert timer.name is None
    timer.set_name("ticker")
    timer.start()
    for _ in range(3):
        assert calls.acquire(timeout=120)
    timer.cancel()
    count = len(seen)
    assert not timer.is_alive()
    assert (1, 2) == seen[0]
    assert count == len(seen)
    for again in (timer.start, lambda: timer.set_name("other")):
        with pytest.raises(RuntimeError, match=r"^The timer has already started.$"):
            again()


def test_a_forgotten_timer_ends() -> None:
    """Nobody holds the timer: its thread has ended when it is let go."""
    called = threading.Event()
    timer = _PeriodicTimer(0.001, called.set)
    timer.start()
    assert called.wait(120)
    thread = timer._thread
    assert thread is not None
    del timer
    assert not thread.is_alive()


def test_a_timer_can_be_forgotten_whatever_it_does() -> None:
    """A call that waits for what the forgetful thread holds does not hold that thread up for ever."""
    called, go_on = threading.Event(), threading.Event()

    def call() -> None:
        called.set()
        go_on.wait()

    timer = _PeriodicTimer(0.001, call)
    timer.start()
    assert called.wait(120)
    thread = timer._thread
    assert thread is not None
    del timer
    assert thread.is_alive()
    go_on.set()
    thread.join(120)
    assert not thread.is_alive()
