"""A shared file system with its clients, as tests see it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "scripts" / "shared-fs"
KINDS = ("gluster", "nfs3", "nfs4")
CLIENTS = (1, 2, 3)


def shared_fs(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `scripts/shared-fs`; the caller looks at the exit code."""
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )


@dataclass(frozen=True)
class FileSystem:
    """One running file system.

    Attributes:
        kind: one of `KINDS`.
        directory: its directory on this machine.
    """

    kind: str
    directory: Path

    @classmethod
    def start(cls, kind: str, directory: Path) -> FileSystem:
        """Start one with three clients."""
        system = cls(kind, directory)
        system.command("start", kind, "--clients", str(len(CLIENTS)))
        return system

    @property
    def mount(self) -> Path:
        """Where each client has it; not visible from here."""
        return self.directory / "mnt"

    @property
    def results(self) -> Path:
        """Directory of this machine that every client can write to."""
        return self.directory / "results"

    def command(self, *words: str) -> str:
        """Run a `shared-fs` command that must work; returns its output."""
        done = shared_fs(words[0], "--dir", str(self.directory), *words[1:])
        assert done.returncode == 0, f"shared-fs {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def argv(self, client: int, program: Sequence[str]) -> list[str]:
        """Return the command line that runs a program on a client."""
        where = ("--dir", str(self.directory), str(client))
        return [sys.executable, str(PROGRAM), "exec", *where, "--", *program]

    def execute(self, client: int, *program: str) -> str:
        """Run a program on a client that must work; returns its output."""
        return self.command("exec", str(client), "--", *program)

    def restore(self) -> None:
        """Undo all faults."""
        self.command("server-thaw")
        for number, power, link in re.findall(r"client(\d+): (.+), (.+)", self.command("status")):
            if power != "up":
                self.command("boot", number)
                continue
            self.command("thaw", number)
            if link != "connected":
                self.command("heal", number)

    def stop(self) -> None:
        """End it."""
        self.command("stop")
