"""The cluster's network: a bridge in a network namespace of its own.

The bridge (the "switch") sits in a named namespace, so the machine's own firewall never sees
traffic between nodes, and the machine itself gets exactly one new interface.
Each port of the switch is named after the node behind it.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .addresses import MARK, SLOTS, AddressPlan, first_slot
from .errors import DevClusterError
from .processes import ProcessId

BRIDGE = "switch"
UPLINK = "machine"


def claim(directory: Path) -> AddressPlan:
    """Take a free slot for the cluster in `directory` and create its namespace.

    Creating the named namespace is the claim: it fails when the name is taken.

    Raises:
        DevClusterError: namespaces cannot be made here.
    """
    mark = Path(MARK)
    start = first_slot(directory, mark.read_text().strip() if mark.exists() else "")
    routed = _routed_networks()
    for step in range(SLOTS):
        plan = AddressPlan((start + step) % SLOTS)
        if exists(plan) or any(plan.subnet.overlaps(network) for network in routed):
            continue
        made = _ip("netns", "add", plan.tag, check=False)
        if made.returncode == 0:
            return plan
        if not exists(plan):
            raise DevClusterError(
                f"Cannot make a network namespace ({made.stderr.strip()}); "
                "the cluster needs the rights of a real root (in a container: --privileged)."
            )
    raise DevClusterError("All cluster slots of this machine are taken; stop some clusters.")


def exists(plan: AddressPlan) -> bool:
    """Whether the cluster's switch namespace is there."""
    return Path("/run/netns", plan.tag).exists()


def build_switch(plan: AddressPlan) -> None:
    """Create the bridge and the machine's own connection to it."""
    _batch(
        (
            f"link add {BRIDGE} type bridge",
            f"link set {BRIDGE} up",
        ),
        plan,
    )
    _batch(
        (
            f"link add {plan.tag} type veth peer name {UPLINK} netns {plan.tag}",
            f"addr add {plan.machine}/24 dev {plan.tag}",
            f"link set {plan.tag} up",
        )
    )
    _batch((f"link set {UPLINK} master {BRIDGE} up",), plan)


def plug_in(plan: AddressPlan, hosts: Mapping[str, ProcessId]) -> None:
    """Give each host an interface `eth0` that ends at the switch port of its name."""
    unplug(plan, tuple(hosts))
    lines = []
    for name, init in hosts.items():
        lines.append(f"link add {name} type veth peer name eth0 netns {init.pid}")
        lines.append(f"link set {name} master {BRIDGE} up")
    _batch(lines, plan)


def unplug(plan: AddressPlan, names: tuple[str, ...]) -> None:
    """Remove the ports that are there; a dead host's port may still be going away by itself."""
    ports = ports_up(plan)
    _batch(tuple(f"link del {name}" for name in names if name in ports), plan, force=True)


def set_port(plan: AddressPlan, name: str, *, up: bool) -> None:
    """Switch the link of a node on or off."""
    _batch((f"link set {name} {'up' if up else 'down'}",), plan)


def ports_up(plan: AddressPlan) -> dict[str, bool]:
    """Every port of the switch, with whether it is switched on."""
    links = json.loads(_ip("-n", plan.tag, "-j", "link", "show").stdout)
    return {link["ifname"]: "UP" in link["flags"] for link in links}


def release(plan: AddressPlan) -> None:
    """Remove the interface, the bridge and the namespace; those already gone are no error."""
    _ip("link", "del", plan.tag, check=False)
    if exists(plan):
        _ip("netns", "del", plan.tag)


def _routed_networks() -> list[ipaddress.IPv4Network]:
    """Networks that the machine already reaches, the default route excepted."""
    routes = json.loads(_ip("-j", "-4", "route", "show", "table", "all").stdout or "[]")
    networks = []
    for route in routes:
        destination = str(route.get("dst", "default"))
        if destination not in {"default", "0.0.0.0/0"}:
            networks.append(ipaddress.IPv4Network(destination, strict=False))
    return networks


def _batch(lines: Sequence[str], plan: AddressPlan | None = None, *, force: bool = False) -> None:
    """Run several `ip` commands in one process, inside the switch namespace if `plan` is given."""
    where = ["-n", plan.tag] if plan else []
    forced = ["-force"] if force else []
    if lines:
        _ip(*where, *forced, "-batch", "-", stdin="\n".join(lines) + "\n", check=not force)


def _ip(*words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `ip`; a failure that matters becomes an error with its own words."""
    done = subprocess.run(["ip", *words], input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise DevClusterError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")
    return done
