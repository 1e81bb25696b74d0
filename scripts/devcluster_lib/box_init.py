"""PID 1 of a box: makes the tree of a Debian suite its root, then reaps what is left behind.

Started by `boxes.open_box` inside fresh namespaces, as a program of its own. It says its pid as the machine
sees it, sets the box up and says `ready`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from typing import NoReturn, TypedDict


class Plan(TypedDict):
    """What the box shall look like.

    Attributes:
        name: its host name.
        tree: root tree of the suite; it is only read.
        folder: where the box keeps what it writes: `upper`, `work`, `root`, `tmp`.
        binds: directories of the machine that the box sees at the same place.
    """

    name: str
    tree: str
    folder: str
    binds: list[str]


def main(plan: Plan) -> NoReturn:
    """Set the box up, then stay as its PID 1 until it is killed."""
    # /proc still belongs to the machine's PID namespace, so this is the pid seen from outside.
    print(os.readlink("/proc/self"), flush=True)
    root = f"{plan['folder']}/root"
    mount_root(plan, root)
    socket.sethostname(plan["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    enter(root)
    print("ready", flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


def mount_root(plan: Plan, root: str) -> None:
    """Mount the tree with a layer of the box's own over it, and what comes from the machine."""
    folder = plan["folder"]
    mount("--make-rprivate", "/")
    layers = f"lowerdir={plan['tree']},upperdir={folder}/upper,workdir={folder}/work"
    mount("-t", "overlay", "-o", layers, "overlay", root)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-t", "sysfs", "sysfs", f"{root}/sys")  # that of the box's own network
    for place in ("/sys/fs/cgroup", "/dev"):
        mount("--rbind", place, root + place)
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/dev/shm")  # noqa: S108
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/run")
    os.makedirs(f"{root}/run/lock", mode=0o1777)
    mount("--bind", f"{folder}/tmp", f"{root}/tmp")  # noqa: S108
    for place in plan["binds"]:
        os.makedirs(root + place, exist_ok=True)
        mount("--bind", place, root + place)


def enter(root: str) -> None:
    """Make a mounted tree the root, and let go of the machine's."""
    os.makedirs(f"{root}/oldroot", exist_ok=True)
    os.chdir(root)
    subprocess.run(["pivot_root", ".", "oldroot"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/oldroot"], check=True)


def mount(*words: str) -> None:
    """Mount a file system."""
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
