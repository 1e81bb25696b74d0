"""What a rendezvous gives to its caller."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from typing import Any

import pytest

import hpc_elastic.rendezvous
from hpc_elastic.meet.interface import free_port, full_host_name
from hpc_elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo, api


class _Dict:
    """A key-value store for one node."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self.values[key] = value

    def get(self, key: str) -> bytes:
        """Return a value."""
        return self.values[key]


def test_rank_0_decides_where_workers_meet() -> None:
    """Address and port of rank 0 are read by the others under torch's keys."""
    store = _Dict()
    first = RendezvousStoreInfo.build(0, store, "10.0.0.1", 1234)
    assert {"MASTER_ADDR": b"10.0.0.1", "MASTER_PORT": b"1234"} == store.values
    assert RendezvousStoreInfo("10.0.0.1", 1234) == first == RendezvousStoreInfo.build(1, store)


def test_what_is_not_given_is_found_out() -> None:
    """Without an address the host's name stands in, without a port a free one."""
    info = RendezvousStoreInfo.build(0, _Dict())
    assert full_host_name() == info.master_addr
    assert 1024 < info.master_port < 1 << 16


def test_a_store_is_opened_when_it_is_used() -> None:
    """A round's store costs nothing until somebody asks for it; then it stays the same."""
    opened: list[object] = []

    def open_store() -> object:
        opened.append(object())
        return opened[-1]

    info = RendezvousInfo(None, 0, 1, RendezvousStoreInfo("a", 1), open_store=open_store)
    assert [] == opened
    assert info.store is info.store
    assert 1 == len(opened)
    assert "RendezvousInfo(rank=0, world_size=1, master='a:1')" == repr(info)


def test_the_package_has_torchs_names() -> None:
    """Each public name can be had from the package, and no other."""
    for name in hpc_elastic.rendezvous.__all__:
        assert getattr(api, name) is getattr(hpc_elastic.rendezvous, name)
    assert set(hpc_elastic.rendezvous.__all__) <= set(dir(hpc_elastic.rendezvous))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hpc_elastic.rendezvous.nothing  # noqa: B018


def test_an_agent_loads_none_of_it() -> None:
    """The agent's rendezvous comes without registry, dynamic handler and key-value store."""
    code = (
        "import hpc_elastic.meet.shared_fs, sys; "
        "print([n for n in sys.modules if n.startswith('hpc_elastic.') and n.rpartition('.')[2] in "
        "('api', 'registry', 'parameters', 'create', 'kv', 'dynamic_handler', 'keep_alive')], "
        "'socket' in sys.modules, 'threading' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True)
    assert "[] False" == done.stdout.strip().rpartition(" ")[0]


class _Refusing(socket.socket):
    """A socket on a host without IPv6, or without any free port.

    Args:
        family: of the socket.
    """

    binds = True

    def __init__(self, family: int = socket.AF_INET, *args: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *args)

    def bind(self, address: Any) -> None:
        """Bind, unless no port is free."""
        if not self.binds:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        super().bind(address)


def test_a_port_is_found_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may know only the old addresses."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    monkeypatch.setattr(socket, "socket", _Refusing)
    assert 20_000 <= free_port() < 32_000


def test_where_no_port_is_free_that_of_torchrun_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens in the end says what is wrong."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    monkeypatch.setattr(_Refusing, "binds", False)
    monkeypatch.setattr(socket, "socket", _Refusing)
    assert 29500 == free_port()
