"""Where rank 0 can be reached, and how the others find the address that answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.errors import InputError, StoreError
from hpc_elastic.frameworks.torch import stores
from hpc_elastic.frameworks.torch.stores import (
    Contact,
    Reach,
    addresses,
    decoded,
    encoded,
    listening_address,
    machine,
)
from hpc_elastic.frameworks.torch.stores import _chosen as chosen
from hpc_elastic.frameworks.torch.stores import _is_for_others as is_for_others
from hpc_elastic.frameworks.torch.stores import _numbers as numbers
from hpc_elastic.frameworks.torch.stores import _ordered as ordered
from hpc_elastic.testing.waiting import wait_until

LIMIT_S = 120.0
NO_NAME = "x" * 64  # too long for a name, so nobody is asked for it
INTERFACES = {
    "docker0": ("172.17.0.1",),
    "eth0": ("10.0.0.7", "fd00::7"),
    "ib0": ("10.1.0.7",),
    "ib1": (),
}


def contact(*where: str, port: int = 1, machine: str = "another", only: bool = False) -> Contact:
    """Return what a rank 0 tells."""
    return Contact(port, "token", machine, "n1", where, only)


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port on all addresses of this machine where connections are taken, and nothing is said."""
    with socket.create_server(("", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_name_leads_to_its_addresses_ipv4_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the resolver otherwise; a name that nobody knows has none."""
    answers = [
        (family, socket.SOCK_STREAM, 6, "", (address, 0))
        for family, address in (
            (socket.AF_INET6, "fd00::1"),
            (socket.AF_INET, "10.0.0.2"),
            (socket.AF_INET6, "fd00::2"),
            (socket.AF_INET, "10.0.0.1"),
        )
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(answers))
    assert ["10.0.0.2", "10.0.0.1", "fd00::1", "fd00::2"] == numbers("n1")
    assert [] == numbers("")
    monkeypatch.undo()
    assert [] == numbers(NO_NAME)


def test_what_is_told_is_read_back() -> None:
    """As it was, and anything else is an error that shows it."""
    told = contact("n1", "10.0.0.7")
    assert told == decoded(encoded(told).encode())
    for wrong in (b"", b"[]", b"{}", b'{"addresses": 1}'):
        with pytest.raises(StoreError, match="rank 0 has not told where"):
            decoded(wrong)


def test_the_same_machine_is_told_apart() -> None:
    """There the loopback interface comes first, unless the user has named the address."""
    here = contact("n1", machine=machine())
    assert ("127.0.0.1", "::1", "n1") == here.to_try(machine())
    assert ("n1",) == here._replace(only=True).to_try(machine())
    assert ("n1",) == contact("n1").to_try(machine())


def test_inner_networks_come_last() -> None:
    """Each node has the same address in them; interfaces that the user chose for NCCL or gloo come first."""
    assert ["10.0.0.7", "fd00::7", "10.1.0.7", "172.17.0.1"] == ordered(INTERFACES, ())
    assert "10.1.0.7" == ordered(INTERFACES, ["ib"])[0]
    assert "10.1.0.7" == ordered(INTERFACES, ["=ib0,ib1"])[0]
    assert "10.0.0.7" == ordered(INTERFACES, ["^ib0"])[0]


def test_one_interface_can_be_named() -> None:
    """Its addresses count, or the name or address as it is; one that is nobody's is refused."""
    assert ("10.0.0.7", "fd00::7") == chosen(INTERFACES, "eth0")
    for good in ("localhost", "10.9.9.9", "fd00::9"):
        assert (good,) == chosen(INTERFACES, good)
    for wrong in ("ib1", "", NO_NAME):
        with pytest.raises(InputError, match=f"not '{wrong}'\n  fix: .*here are: docker0, eth0, ib0"):
            chosen(INTERFACES, wrong)


def test_addresses_that_mean_something_else_elsewhere_are_left_out() -> None:
    """Loopback, link-local ones, and an empty MASTER_ADDR."""
    good = ["10.0.0.7", "fd00::7", "n1", "n1.cluster"]
    bad = [
        "",
        "localhost",
        "127.0.0.1",
        "127.0.1.1",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "169.254.1.1",
        "::",
    ]
    assert good == [address for address in (*good, *bad) if is_for_others(address)]
    assert ("n7", os.uname().nodename) == addresses({"MASTER_ADDR": "n7"}, None)[:2]
    assert "127.0.0.1" not in addresses({"MASTER_ADDR": "127.0.0.1"}, None)


class Answers:
    """Stands for torch's clients: what each address leads to."""

    def __init__(self, **by_name: bool) -> None:
        self.by_name = by_name
        self.release = threading.Event()
        self.asked: list[str] = []

    def client(self, host: str) -> Any:
        """Return a client, or wait as torch does for what is no store."""
        self.asked.append(host)
        if host not in self.by_name:
            self.release.wait(LIMIT_S)
        return self

    def check(self, keys: list[str]) -> bool:
        """Tell whether it is the right store."""
        return keys == ["token"]


def test_the_address_that_answers_is_found(port: int) -> None:
    """After a name that nobody knows, and one where somebody else listens who says nothing."""
    answers = Answers(localhost=True)
    reach = Reach(contact(NO_NAME, "127.0.0.1", "localhost", port=port), answers.client)
    assert answers is reach.until(LIMIT_S)
    assert ["127.0.0.1", "localhost"] == answers.asked
    answers.release.set()


def test_what_came_of_each_address_is_said(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each; who hangs is not asked again and again."""
    monkeypatch.setattr(stores, "_PASS_S", 0.01)
    answers = Answers()
    reach = Reach(contact(NO_NAME, "127.0.0.1", port=port), answers.client)
    wait_until(lambda: reach.until(0.1) is None and "idna" in reach.said(), "the name", timeout_s=LIMIT_S)
    wait_until(lambda: answers.asked == ["127.0.0.1"], "the address", timeout_s=LIMIT_S)
    assert reach.until(0.1) is None
    assert ["127.0.0.1"] == answers.asked
    answers.release.set()
    name, silent = reach.said().splitlines()
    assert name.startswith(f"  {NO_NAME}: ")
    assert "idna" in name
    assert "  127.0.0.1: the connection is not accepted by the store, or there is no answer" == silent
    alone = Reach(contact(), answers.client)
    assert "  rank 0 has found no address of its node but those for itself" == alone.said()


def test_another_store_is_no_answer(port: int) -> None:
    """The address may be that of another machine in another network."""
    answers = Answers(localhost=True)
    told = contact("localhost", port=port)
    reach = Reach(told._replace(token=told.token.upper()), answers.client)
    said = "  localhost: another store answers there"
    wait_until(lambda: reach.until(0.05) is None and said == reach.said(), said, timeout_s=LIMIT_S)


@pytest.mark.parametrize(
    ("environ", "address", "expected"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7"}, None, "127.0.0.1"),
        ({"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7"}, None, "10.0.0.7"),
        ({"MASTER_ADDR": "10.0.0.7", "NCCL_SOCKET_IFNAME": "ib"}, None, "10.1.0.7"),
        ({"MASTER_ADDR": "10.0.0.7", "NCCL_SOCKET_IFNAME": "^ib"}, None, "10.0.0.7"),
        ({"MASTER_ADDR": "fd00::7"}, None, "fd00::7"),
        ({"MASTER_ADDR": "127.0.0.1"}, None, ""),
        ({"MASTER_ADDR": "10.9.9.9"}, None, ""),
        ({"MASTER_ADDR": NO_NAME}, None, ""),
        ({"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7"}, "ib0", "10.1.0.7"),
        ({"MASTER_ADDR": "10.0.0.7"}, "10.1.0.7", "10.1.0.7"),
        ({"MASTER_ADDR": "10.0.0.7"}, "127.0.0.1", "127.0.0.1"),
        ({"MASTER_ADDR": "10.0.0.7"}, "10.9.9.9", ""),
    ],
)
def test_rank_0_listens_at_the_address_of_the_job(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], address: str | None, expected: str
) -> None:
    """At all only where none is known to be this node's."""
    monkeypatch.setattr(stores, "_interfaces", lambda: iter(INTERFACES.items()))
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"nodename": NO_NAME}))
    assert expected == listening_address({"WORLD_SIZE": "4", **environ}, address)


def test_interfaces_that_are_down_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their addresses lead nowhere; one of which nothing is known is taken for up."""
    import psutil  # noqa: PLC0415 - of one test

    def with_address(address: str) -> list[Any]:
        return [SimpleNamespace(family=socket.AF_INET, address=address)]

    monkeypatch.setattr(
        psutil,
        "net_if_addrs",
        lambda: {name: with_address(f"10.0.0.{at}") for at, name in enumerate("abc", 1)},
    )
    states = {"a": SimpleNamespace(isup=False), "b": SimpleNamespace(isup=True)}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert {"b": ("10.0.0.2",), "c": ("10.0.0.3",)} == dict(stores._interfaces())
