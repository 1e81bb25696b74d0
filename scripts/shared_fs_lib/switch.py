"""The network: two bridges in a network namespace of their own, so the machine sees none of it.

Nodes use the bridge `data`; the bridge `control` is for this program alone and is never cut.
A port is named after the node behind it, with `-c` at its end in the control network.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from devcluster_lib.errors import DevClusterError

from .layout import CONTROLLER_ADDRESS

DATA, CONTROL = "data", "control"
BRIDGES = {DATA: "", CONTROL: "-c"}
NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000


def build(network: str) -> None:
    """Create the namespace with both bridges.

    Raises:
        DevClusterError: namespaces cannot be made here, or the name is taken.
    """
    _ip("netns", "add", network)
    lines = ["link set lo up"]
    for bridge in BRIDGES:
        lines += [f"link add {bridge} type bridge", f"link set {bridge} up"]
    _batch(network, [*lines, f"addr add {CONTROLLER_ADDRESS}/24 dev {CONTROL}"])


def remove(network: str) -> None:
    """Remove the namespace with all that is in it; it may be gone already."""
    if (NAMESPACES / network).exists():
        _ip("netns", "del", network)


def add_taps(network: str, node: str) -> None:
    """Give a kernel of its own one port in each bridge; they outlive it."""
    lines = []
    for bridge, end in BRIDGES.items():
        lines.append(f"tuntap add dev {node}{end} mode tap")
        lines.append(f"link set {node}{end} master {bridge} up")
    if not _has_port(network, node):
        _batch(network, lines)
    set_port(network, node, up=True)


def plug_in(network: str, node: str, pid: int) -> None:
    """Give the network namespace of a process interfaces `eth0` (data) and `eth1` (control)."""
    lines = []
    for index, (bridge, end) in enumerate(BRIDGES.items()):
        if _has_port(network, node + end):  # a dead node's port may still be going away by itself
            _ip("-n", network, "link", "del", node + end, check=False)
        lines.append(f"link add {node}{end} type veth peer name eth{index} netns {pid}")
        lines.append(f"link set {node}{end} master {bridge} up")
    _batch(network, lines)


def set_port(network: str, node: str, *, up: bool) -> None:
    """Plug a node into the data network or pull the plug.

    The link itself stays up: a user-mode Linux does not get over an interface that goes down.
    """
    _batch(network, [f"link set {node} master {DATA}" if up else f"link set {node} nomaster"])


def is_connected(network: str, node: str) -> bool:
    """Whether a node is plugged into the data network."""
    return any(link["ifname"] == node and "master" in link for link in _links(network))


def connect(network: str, address: tuple[str, int], timeout_s: float) -> socket.socket:
    """Connect to a node from inside the namespace.

    Raises:
        OSError: nobody listens there yet, or the namespace is gone.
    """
    with _inside(network):
        return socket.create_connection(address, timeout=timeout_s)


@contextlib.contextmanager
def _inside(network: str) -> Iterator[None]:
    """Put this thread into the namespace; sockets made there stay there."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(NAMESPACES / network, os.O_RDONLY)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12 on
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def _links(network: str) -> list[dict[str, str]]:
    links: list[dict[str, str]] = json.loads(_ip("-n", network, "-j", "link", "show").stdout)
    return links


def _has_port(network: str, port: str) -> bool:
    return any(link["ifname"] == port for link in _links(network))


def _batch(network: str, lines: Sequence[str]) -> None:
    _ip("-n", network, "-batch", "-", stdin="\n".join(lines) + "\n")


def _ip(*words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `ip`; a failure that matters becomes an error with its own words."""
    done = subprocess.run(["ip", *words], input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise DevClusterError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")
    return done
