"""Where rank 0 can be reached: the addresses of a node, the likely ones first."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping

from hpc_elastic.errors import DamagedError, InputError, StoreError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import read

LOOPBACK = ("127.0.0.1", "::1")
_PINNED = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")  # interfaces that the user chose for the data
# of containers and virtual machines: the same addresses on many nodes, and reached from none
_INNER = re.compile(r"docker|br-|virbr|veth|cni|flannel|cali|lxc|lxd|podman|tun|tap|kube")


class Contact(NamedTuple):
    """The address of the store, as rank 0 publishes it."""

    port: int
    token: str  # a key of the store, by which it is known from others that might answer
    machine: str
    host: str
    addresses: tuple[str, ...]
    only: bool  # the user named the address: no other is tried

    def to_try(self, machine: str) -> tuple[str, ...]:
        """Return the addresses for a process on a machine, the likely ones first."""
        near = LOOPBACK if machine == self.machine and not self.only else ()
        return tuple(dict.fromkeys((*near, *self.addresses)))


def encoded(contact: Contact) -> str:
    """Return a contact as text."""
    return json.dumps(contact._asdict())


def decoded(data: bytes) -> Contact:
    """Return the contact in a text.

    Raises:
        StoreError: there is none in it.
    """
    try:
        return read(Contact, data)
    except DamagedError:
        raise StoreError(f"rank 0 has not told where its store is, but {data[:80]!r}") from None


def machine() -> str:
    """Return a name that is the same for processes that share a loopback interface, and for no others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino:x}"
    except OSError:
        return os.uname().nodename


def addresses(environ: Mapping[str, str], address: str | None) -> tuple[str, ...]:
    """Return names and addresses by which other nodes may reach this one.

    Args:
        environ: the worker's environment.
        address: the only one, or the only interface, if the user named it.

    Raises:
        InputError: an interface of that name has no address.
    """
    interfaces = dict(_interfaces())
    if address is not None:
        return _chosen(interfaces, address)
    names = (environ.get("MASTER_ADDR", ""), os.uname().nodename)
    ordered = _ordered(interfaces, _pinned(environ))
    return tuple(dict.fromkeys((*filter(_is_for_others, names), *ordered)))


def _pinned(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environ[name] for name in _PINNED if environ.get(name))


def _chosen(interfaces: Mapping[str, tuple[str, ...]], address: str) -> tuple[str, ...]:
    found = interfaces.get(address, (address,) if _resolves(address) else ())
    if not found:
        names = ", ".join(sorted(name for name, those in interfaces.items() if those)) or "none"
        raise InputError(
            f"address must be a host name, an IP address or a network interface with one, not {address!r}",
            where=f"hpc_elastic.frameworks.torch.store on {os.uname().nodename}",
            fix=f"interfaces with addresses here are: {names}",
        )
    return found


def listening_address(environ: Mapping[str, str], address: str | None) -> str:
    """Return the one address of this node at which rank 0 is to listen; empty for all, if none is sure.

    Where all ranks are on this node it is the loopback interface. Else it is that of the job: the choice
    of the user, an interface of NCCL or gloo, or the address of MASTER_ADDR or the host name.

    Args:
        environ: the worker's environment.
        address: the only one, or the only interface, if the user named it.
    """
    if address is None and environ.get("LOCAL_WORLD_SIZE", "") == environ.get("WORLD_SIZE"):
        return LOOPBACK[0]
    interfaces = dict(_interfaces())
    own = {one for those in interfaces.values() for one in those}
    if address is not None:
        wished = _chosen(interfaces, address)
        own.update(LOOPBACK)
    else:
        names = (environ.get("MASTER_ADDR", ""), os.uname().nodename)
        wished = (*_ordered(interfaces, _pinned(environ), only=True), *names)
    return next((one for name in wished for one in _numbers(name) if one in own), "")


def _numbers(name: str) -> list[str]:
    """Return the addresses of a host as this node sees it, IPv4 first; none if there is no such host."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM) if name else []
    except (OSError, UnicodeError):
        return []
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return [str(one[4][0]) for one in found]


def _resolves(address: str) -> bool:
    """Tell whether a host has a name or address, as this node sees it."""
    try:
        return bool(address and socket.getaddrinfo(address, None))
    except (OSError, UnicodeError):
        return False


def _interfaces() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the interfaces that are up, with their addresses, IPv4 first."""
    import socket  # noqa: PLC0415 - 5 ms

    import psutil  # noqa: PLC0415 - 20 ms

    states = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        if name in states and not states[name].isup:
            continue
        of_family = {
            family: [entry.address for entry in entries if entry.family == family]
            for family in (socket.AF_INET, socket.AF_INET6)
        }
        yield name, tuple(filter(_is_for_others, [one for those in of_family.values() for one in those]))


def _is_for_others(address: str) -> bool:
    """Tell whether an address or a name can mean this node on another one."""
    if not address or address == "localhost":
        return False
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "%" not in address  # a name; or an address that holds on one link
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def _ordered(
    interfaces: Mapping[str, tuple[str, ...]], pinned: Iterable[str], *, only: bool = False
) -> list[str]:
    """Return all addresses: of the interfaces that the user chose, of others, and of inner networks.

    Args:
        interfaces: with their addresses.
        pinned: the choice of the user.
        only: leave out all other addresses.
    """
    chosen = tuple(
        name.removeprefix("=") for text in pinned if not text.startswith("^") for name in text.split(",")
    )

    def place(name: str) -> int:
        if chosen and name.startswith(chosen):
            return 0
        return 2 if _INNER.match(name) else 1

    names = [name for name in sorted(interfaces, key=place) if not only or place(name) == 0]
    return [address for name in names for address in interfaces[name]]
