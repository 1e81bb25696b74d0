"""PID 1 of a node: finishes the node's namespaces, then reaps what the node leaves behind.

Started by `namespaces.boot` inside fresh namespaces, as a program of its own.
Protocol on stdin and stdout: it says its pid as the machine sees it, waits for `go`
(network and cgroups are in place), sets the node up and says `ready`.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from typing import NoReturn, TypedDict

CLONE_NEWCGROUP = 0x02000000
NEIGHBOURS = {"base_reachable_time_ms": "1000", "delay_first_probe_time": "1", "retrans_time_ms": "300"}
"""How soon a node finds that a peer is gone: a connection to it fails after 3 s, not after 12 s.

slurmctld (seen with 24.11.5) notes the answers to its pings together, when the last of them has come or
failed. With 12 s that is later than SlurmdTimeout, 10 s here, and live nodes were taken for lost.
"""


class Plan(TypedDict):
    """What the node shall look like.

    Attributes:
        name: its host name.
        address: its IPv4 address, with the prefix length.
        hosts: file that the node shall see as /etc/hosts.
        cgroups: what to mount: lists of controllers of version 1, or one list with `cgroup2`; may be empty.
    """

    name: str
    address: str
    hosts: str
    cgroups: list[list[str]]


def main(plan: Plan) -> NoReturn:
    """Set the node up, then stay as its PID 1 until it is killed."""
    # /proc still belongs to the machine's PID namespace, so this is the pid seen from outside.
    print(os.readlink("/proc/self"), flush=True)
    if sys.stdin.readline() != "go\n":
        sys.exit("the booting command gave up")
    socket.sethostname(plan["name"])
    set_up_network(plan["address"])
    mount_own_files(plan["hosts"])
    notice_lost_peers_soon()
    if plan["cgroups"]:
        mount_own_cgroups(plan["cgroups"])
    print("ready", flush=True)
    detach_stdio()
    reap_forever()


def set_up_network(address: str) -> None:
    """Configure lo and eth0; there is no route out, so look-ups of foreign names fail at once."""
    lines = f"link set lo up\naddr add {address} dev eth0\nlink set eth0 up\n"
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)


def mount_own_files(hosts: str) -> None:
    """Give the node its own /proc, /sys, /dev/shm and /etc/hosts."""
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "sysfs", "sysfs", "/sys")
    mount("-t", "tmpfs", "-o", "mode=1777,size=512m", "tmpfs", "/dev/shm")  # noqa: S108
    mount("--bind", hosts, "/etc/hosts")


def notice_lost_peers_soon() -> None:
    """Have the kernel ask again soon for a peer that does not answer; needs the node's own /proc."""
    for name, value in NEIGHBOURS.items():
        with open(f"/proc/sys/net/ipv4/neigh/eth0/{name}", "w") as file:
            file.write(value)


def mount_own_cgroups(hierarchies: list[list[str]]) -> None:
    """Enter a cgroup namespace rooted at the node's own cgroups and mount only those."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWCGROUP) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWCGROUP)")
    if hierarchies == [["cgroup2"]]:
        mount("-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        os.mkdir("/sys/fs/cgroup/system.slice")  # systemd's, where Slurm puts its jobs
        os.mkdir("/sys/fs/cgroup/enter")  # where programs are that enter the node from outside
        os.mkdir("/sys/fs/cgroup/init")  # where the node's own programs are: Slurm divides what is above
        with open("/sys/fs/cgroup/init/cgroup.procs", "w") as file:
            file.write("1")
        return
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
    for controllers in hierarchies:
        for controller in controllers:
            target = f"/sys/fs/cgroup/{controller}"
            os.mkdir(target)
            mount("-t", "cgroup", "-o", ",".join(controllers), "cgroup", target)


def mount(*words: str) -> None:
    """Mount a file system."""
    subprocess.run(["mount", *words], check=True)


def detach_stdio() -> None:
    """Let go of the pipes to the command that booted the node."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def reap_forever() -> NoReturn:
    """Collect orphans for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
