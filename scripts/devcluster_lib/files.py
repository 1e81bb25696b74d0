"""Create the files of a cluster directory with the owners that the daemons insist on."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from . import config
from .errors import DevClusterError
from .layout import Layout
from .settings import Auth
from .state_file import locked

USERS_LOCK = Path("/run/lock/devcluster-users")
BORROWED = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx")
"""Stand in for GPUs where no device may be made: Slurm ignores GPUs that are plain files."""


def create_directories(layout: Layout, *, accounting: bool) -> None:
    """Create the directory tree."""
    for path in (layout.conf, layout.run, layout.spool, layout.devices):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    owned = {
        layout.logs: "slurm",
        layout.controller_state: "slurm",
        layout.run / "slurm": "slurm",
        layout.run / "munge": "munge",
    }
    if accounting:
        owned[layout.mysql_socket.parent] = "mysql"
    for path, user in owned.items():
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
        shutil.chown(path, user, user)
    layout.shared.mkdir(exist_ok=True)
    layout.shared.chmod(0o1777)


def prepare_root(layout: Layout) -> None:
    """Create the cluster directory itself.

    Raises:
        DevClusterError: it is not ours, or unprivileged users cannot get there.
    """
    root = layout.root
    for parent in root.parents:
        if parent.exists() and not parent.stat().st_mode & 0o001:
            raise DevClusterError(f"{parent} is closed to unprivileged users; give another --dir.")
    root.mkdir(parents=True, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != 0:
        raise DevClusterError(f"{root} is a link or belongs to another user; give another --dir.")
    if not layout.state_file.exists() and any(path != layout.lock for path in root.iterdir()):
        raise DevClusterError(f"{root} is not empty and holds no cluster; give another --dir.")
    root.chmod(0o755)


def create_users(users: tuple[str, ...]) -> None:
    """Create the missing users, with a home directory; one command at a time."""
    with locked(USERS_LOCK):
        for user in users:
            try:
                pwd.getpwnam(user)
            except KeyError:
                subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", user], check=True)


def make_gpus(layout: Layout, count: int) -> tuple[tuple[str, ...], bool]:
    """Provide one character device per GPU.

    Returns:
        The devices, and whether they are our own (else borrowed from the machine).
    """
    files = tuple(str(layout.devices / f"gpu{i}") for i in range(count))
    major = unused_major(Path("/proc/devices").read_text())
    try:
        for minor, file in enumerate(files):
            if not os.path.exists(file):
                os.mknod(file, 0o20666, os.makedev(major, minor))
                os.chmod(file, 0o666)
    except PermissionError:
        if count > len(BORROWED):
            raise DevClusterError(
                f"Devices cannot be made here (no CAP_MKNOD), so at most {len(BORROWED)} GPUs are possible."
            ) from None
        return BORROWED[:count], False
    return files, True


def unused_major(devices: str) -> int:
    """A character device number for local use that no driver has, from the text of /proc/devices."""
    characters = devices.partition("Block devices")[0].splitlines()
    used = {int(line.split()[0]) for line in characters if line.strip()[:1].isdigit()}
    return next(major for major in range(240, 255) if major not in used)


def write_config(inputs: config.ConfigInputs) -> None:
    """Write the configuration files."""
    layout, settings = inputs.layout, inputs.settings
    if not layout.munge_key.exists():
        layout.munge_key.touch(0o400)
        layout.munge_key.write_bytes(os.urandom(1024))
    shutil.chown(layout.munge_key, "munge", "munge")
    layout.slurm_conf.write_text(config.slurm_conf(inputs))
    (layout.conf / "gres.conf").write_text(config.gres_conf(inputs))
    (layout.conf / "cgroup.conf").write_text(config.cgroup_conf(inputs))
    layout.hosts.write_text(config.hosts(inputs, socket.gethostname()))
    if settings.auth is Auth.SLURM:
        _prepare_own_auth(layout)
    if settings.accounting:
        _write_secret(layout.conf / "slurmdbd.conf", config.slurmdbd_conf(inputs), owner="slurm")
    for name in settings.node_names:
        (layout.spool / name).mkdir(exist_ok=True)


def _prepare_own_auth(layout: Layout) -> None:
    """Make the key of auth/slurm, and where slurmctld and slurmd listen for those who want a signature.

    The sockets are those of the machine, or of the box: one such cluster at a time can be used there.
    """
    for name, owner in (("slurmctld", "slurm"), ("slurm", "root")):
        place = Path("/run") / name
        place.mkdir(exist_ok=True)
        shutil.chown(place, owner, owner)
    key = layout.conf / "slurm.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    shutil.chown(key, "slurm", "slurm")


def _write_secret(path: Path, text: str, owner: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text(text)
    shutil.chown(path, owner, owner)


def wipe_jobs(layout: Layout) -> None:
    """Forget all jobs; logs, the shared directory and the database stay."""
    for path in (layout.run, layout.controller_state, layout.spool, layout.devices):
        shutil.rmtree(path, ignore_errors=True)
