"""Install the Debian packages that a cluster needs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import DevClusterError
from .processes import SYSTEM_PATH
from .settings import Auth
from .state_file import locked

POLICY = Path("/usr/sbin/policy-rc.d")
LOCK = Path("/run/devcluster-packages.lock")
"""Held while packages are installed: two programs that change the policy at a time leave it changed."""
BASE = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurm-client": "sbatch",
    "slurm-wlm-basic-plugins": "select_cons_tres.so",
    "munge": "munged",
    "iproute2": "ip",
    "procps": "pkill",
    "util-linux": "nsenter",
}
ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "slurm-wlm-mysql-plugin": "accounting_storage_mysql.so",
    "mariadb-server": "mariadbd",
}
"""Package -> a program or Slurm plugin that shows it is there, whoever installed it."""


def missing(*, accounting: bool) -> list[str]:
    """Packages of which a part is not on this machine."""
    needed = {**BASE, **ACCOUNTING} if accounting else BASE
    return [package for package, part in needed.items() if not _is_there(part)]


def _is_there(part: str) -> bool:
    if part.endswith(".so"):
        libraries = Path("/usr/lib")
        return any(any(libraries.glob(p + part)) for p in ("slurm*/", "*/slurm*/"))
    return shutil.which(part, path=SYSTEM_PATH) is not None


def slurm_release() -> tuple[int, ...]:
    """Return the release of this machine's Slurm, such as (24, 11)."""
    said = subprocess.run(
        ["slurmd", "-V"], capture_output=True, text=True, check=False, env={"PATH": SYSTEM_PATH}
    )
    found = re.search(r"(\d+)\.(\d+)", said.stdout)
    if found is None:
        raise DevClusterError(
            f"slurmd -V does not tell its version: {(said.stdout or said.stderr).strip()!r}."
        )
    return int(found[1]), int(found[2])


def check_auth(auth: Auth) -> None:
    """Refuse a way of authentication that this machine's Slurm has not.

    Raises:
        DevClusterError: its plugin is missing.
    """
    if not _is_there(f"auth_{auth.value}.so"):
        raise DevClusterError(f"--auth {auth.value}: this Slurm has no such plugin; 24.11 and newer have it.")


def install(*, accounting: bool) -> list[str]:
    """Install what is missing; the packaged services are not started.

    Returns:
        The packages that were installed.

    Raises:
        DevClusterError: apt is not here or failed; the text names the packages.
    """
    packages = missing(accounting=accounting)
    if packages:
        fetch(packages, lambda: missing(accounting=accounting))
    return packages


def fetch(packages: list[str], still_missing: Callable[[], list[str]]) -> None:
    """Install Debian packages without starting their services.

    Raises:
        DevClusterError: apt is not here or failed, or something is missing afterwards.
    """
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise DevClusterError(f"There is no apt-get here; install what these Debian packages hold: {wanted}.")
    descriptor, log = tempfile.mkstemp(prefix="devcluster-apt-", suffix=".log")
    with os.fdopen(descriptor, "w"), locked(LOCK), _services_stay_off():
        # The package lists may be missing or old: then refresh them and try again.
        done = _apt_install(packages, descriptor) or (
            _apt(["update"], descriptor) and _apt_install(packages, descriptor)
        )
    if not done or still_missing():
        raise DevClusterError(
            f"apt-get could not install {wanted} (log: {log}); check the network and apt's sources, "
            "or install these packages by other means."
        )
    os.unlink(log)


def _apt_install(packages: list[str], log: int) -> bool:
    return _apt(["install", "--yes", "--no-install-recommends", *packages], log)


def _apt(words: list[str], log: int) -> bool:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=120", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, check=False)
    return done.returncode == 0


@contextlib.contextmanager
def _services_stay_off() -> Iterator[None]:
    """Keep the packages from starting their services; a policy the machine had comes back."""
    saved = POLICY.with_name("policy-rc.d.before-devcluster")
    had_policy = POLICY.exists() or POLICY.is_symlink()
    if had_policy:
        POLICY.rename(saved)
    try:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        if had_policy:
            saved.rename(POLICY)
