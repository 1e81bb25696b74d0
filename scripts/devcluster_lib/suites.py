"""Root trees of Debian suites, each with the Slurm that it has.

A tree is made once, by debootstrap, and only read after that: what runs in it writes elsewhere (`boxes`).
Beside it lies what it got, since a suite that is not released yet moves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import packages
from .errors import DevClusterError, MovingSuiteError
from .processes import SYSTEM_PATH
from .state_file import locked

CACHE = Path(os.environ.get("DEVCLUSTER_SUITES") or "/var/cache/hpc_elastic-suites")
DEBIAN = "http://deb.debian.org/debian"
INCLUDED = (
    *("ca-certificates", "git", "python3", "python3-venv", "slurm-wlm"),
    *packages.BASE,
    *packages.ACCOUNTING,
)
BARE = ("ca-certificates", "git", "python3")
"""What a new user's machine may have, and no more."""
_SLURM = re.compile(r"^slurm(?:-wlm)? (\d+\.\d+\.\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    """One suite of Debian.

    Attributes:
        version: the Slurm that it is wanted for; empty: none, the tree holds what a bare machine has.
        name: the suite.
        moves: it is not released, so that it may have another Slurm tomorrow.
        python_of: a newer suite whose Python (with its C library) it gets, where its own is too old.
        lacks: packages that it has under no name of their own.
    """

    version: str
    name: str
    moves: bool = False
    python_of: str = ""
    lacks: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """Its root tree."""
        return CACHE / (self.name if self.version else f"{self.name}-bare")

    @property
    def got(self) -> str:
        """Which Slurm and Python the tree has, in one line; empty if it is not there."""
        path = self.root / "etc" / "devcluster-suite"
        return path.read_text().strip() if path.exists() else ""

    def ensure(self) -> None:
        """Make the tree if it is not there; others that want it wait.

        Raises:
            DevClusterError: it could not be made; a MovingSuiteError where that may be so tomorrow, too.
        """
        CACHE.mkdir(parents=True, exist_ok=True)
        with locked(self.root.with_suffix(".lock")):
            if self.got:
                return
            try:
                _make(self)
            except DevClusterError as error:
                raise MovingSuiteError(str(error)) if self.moves else error from None


SUITES = {
    suite.version: suite
    for suite in (
        Suite("20.11", "bullseye", python_of="bookworm", lacks=("slurm-wlm-mysql-plugin",)),
        Suite("22.05", "bookworm"),
        Suite("24.11", "trixie"),
        Suite("26.05", "sid", moves=True),
    )
}


BARE_SUITE = Suite("", "bookworm")


def _make(suite: Suite) -> None:
    if shutil.which("debootstrap") is None:
        packages.fetch(["debootstrap"], lambda: [] if shutil.which("debootstrap") else ["debootstrap"])
    draft, log = suite.root.with_suffix(".new"), suite.root.with_suffix(".log")
    for old in (draft, suite.root):
        shutil.rmtree(old, ignore_errors=True)
    wanted = ",".join(name for name in (INCLUDED if suite.version else BARE) if name not in suite.lacks)
    command = ("debootstrap", "--variant=minbase", f"--include={wanted}", suite.name, str(draft), mirror())
    with log.open("wb") as output:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
    if done.returncode != 0:
        raise DevClusterError(f"debootstrap could not make Debian {suite.name}; see {log}.")
    if suite.python_of:
        _add_newer_python(suite, draft, log)
    (draft / "etc" / "devcluster-suite").write_text(f"{_got(suite, draft)}\n")
    shutil.rmtree(draft / "var" / "cache" / "apt" / "archives", ignore_errors=True)
    draft.replace(suite.root)


def _add_newer_python(suite: Suite, tree: Path, log: Path) -> None:
    """Install the Python of a newer Debian in a tree; apt brings the C library that it needs along."""
    shutil.copyfile("/etc/resolv.conf", tree / "etc" / "resolv.conf")
    policy = tree / packages.POLICY.relative_to("/")
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    source = tree / "etc" / "apt" / "sources.list.d" / "newer.list"
    source.write_text(f"deb {mirror()} {suite.python_of} main\n")
    install = (
        "install",
        "--yes",
        "--no-install-recommends",
        "-t",
        suite.python_of,
        "python3",
        "python3-venv",
    )
    env = {"PATH": SYSTEM_PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    with log.open("ab") as output:
        for words in (("update",), install):
            command = ("chroot", str(tree), "apt-get", "--quiet", *words)
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
            if done.returncode != 0:
                raise DevClusterError(
                    f"apt-get could not give Debian {suite.name} the Python of {suite.python_of}; see {log}."
                )


def _got(suite: Suite, tree: Path) -> str:
    """Return what a tree has; raises DevClusterError if that is not the Slurm that was wanted."""
    if not suite.version:
        return f"{_ask(tree, 'python3', '--version')}, Debian {suite.name}"
    said = _ask(tree, "slurmd", "-V")
    found = _SLURM.search(said)
    if found is None or (not found[1].startswith(f"{suite.version}.") and not suite.moves):
        raise DevClusterError(f"Debian {suite.name} has {said or 'no Slurm'}, not Slurm {suite.version}.")
    return f"Slurm {found[1]}, {_ask(tree, 'python3', '--version')}, Debian {suite.name}"


def _ask(tree: Path, *argv: str) -> str:
    env = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}
    inside = ("chroot", str(tree), *argv)
    done = subprocess.run(
        inside, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return (done.stdout or done.stderr).strip()


def mirror() -> str:
    """Return the mirror of Debian that this machine uses, by apt's sources."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    files = [path for path in places if path.suffix in (".list", ".sources") and path.exists()]
    return mirror_in("\n".join(path.read_text() for path in files))


def mirror_in(sources: str) -> str:
    """Return the first place of Debian itself in the text of apt's sources, else where everybody finds it."""
    lines = re.findall(r"^(?:URIs:|deb(?: \[.*?\])?) *(.*)$", sources, re.MULTILINE)
    places = [word.rstrip("/") for line in lines for word in line.split()]
    return next((place for place in places if re.fullmatch(r"https?://\S+/debian", place)), DEBIAN)
