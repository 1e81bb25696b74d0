"""Names and addresses of one cluster, all derived from one small number."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path

CONTROLLER = "ctl"
SLOTS = 64 * 256
"""Clusters that fit side by side: one /24 each in 10.192.0.0/10."""


MARK = "/etc/devcluster-box"
"""Names the box that this is (`boxes`); boxes see the same cgroups, but not each other's clusters."""


def first_slot(directory: Path, box: str = "") -> int:
    """Number that a cluster in `directory` of a box tries first; the same on every start."""
    digest = hashlib.sha256(f"{box}{directory}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % SLOTS


@dataclass(frozen=True)
class AddressPlan:
    """Names and addresses of the cluster in one slot.

    Attributes:
        slot: number in 0..SLOTS-1, unique among the clusters of this machine.
    """

    slot: int

    @property
    def tag(self) -> str:
        """Name of the switch namespace, of the machine's interface and of cgroups."""
        return f"dc{self.slot:04x}"

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        """The cluster's own /24."""
        return ipaddress.IPv4Network(f"10.{192 + self.slot // 256}.{self.slot % 256}.0/24")

    @property
    def machine(self) -> str:
        """Address of the machine itself, where users submit."""
        return str(self.subnet[1])

    @property
    def controller(self) -> str:
        """Address of slurmctld and slurmdbd."""
        return str(self.subnet[2])

    def node(self, index: int) -> str:
        """Address of node `index` (1, 2, ...)."""
        return str(self.subnet[10 + index])

    def host(self, name: str) -> str:
        """Address of `ctl` or `node<i>`."""
        return self.controller if name == CONTROLLER else self.node(int(name.removeprefix("node")))
