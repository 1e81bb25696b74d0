"""Real shared file systems for the measures, on several clients; made by scripts/shared-fs."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_lib.launchers import REPOSITORY
from bench_lib.scale_group import Place

KINDS = ("gluster", "nfs3", "nfs4")
CLIENTS = 3
_TOOL = REPOSITORY / "scripts" / "shared-fs"


class ClientsError(Exception):
    """The clients of a shared file system could not be started; the text says why."""


@contextlib.contextmanager
def mounted(kind: str) -> Iterator[Place]:
    """Start a shared file system with its clients for as long as the block lasts.

    Raises:
        ClientsError: that is not possible here.
    """
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        mount_point = _tool("start", kind, "--dir", str(root), "--clients", str(CLIENTS)).split()[-1]
        prefixes = tuple(
            (sys.executable, str(_TOOL), "exec", "--dir", str(root), str(client), "--")
            for client in range(1, CLIENTS + 1)
        )
        yield Place(f"{kind}, {CLIENTS} clients", mount_point, 0.0, prefixes, str(root / "results"))
    finally:
        with contextlib.suppress(ClientsError):
            _tool("stop", "--dir", str(root))
            shutil.rmtree(root, ignore_errors=True)


def _tool(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(_TOOL), *arguments], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise ClientsError(f"scripts/shared-fs {arguments[0]}: {ended.stderr.strip()[-500:]}")
    return ended.stdout
