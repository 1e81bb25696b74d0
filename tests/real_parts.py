"""What a test does where the real thing that it needs cannot be had."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest


def unavailable(what: str, reason: str) -> NoReturn:
    """Skip the test; fail where HPC_ELASTIC_NO_SKIP=1, as in CI."""
    if os.environ.get("HPC_ELASTIC_NO_SKIP") == "1":
        pytest.fail(f"no {what}, and HPC_ELASTIC_NO_SKIP=1: {reason}", pytrace=False)
    pytest.skip(f"no {what}: {reason}")


def require_root_and_namespaces(what: str, kinds: Sequence[str]) -> None:
    """Go on only as root, and only where namespaces of these kinds (`net`, `pid` ...) can be made."""
    if os.geteuid() != 0:
        unavailable(what, "only root can start one")
    probe = ["unshare", *(f"--{kind}" for kind in kinds), "--fork", "true"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        unavailable(what, f"no namespaces: {tried.stderr.strip()}")


@contextmanager
def memory_group(name: str, limit: int) -> Iterator[Path]:
    """Give a control group with a limit of memory [bytes], of either version; it is removed afterwards."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    is_v1 = (v1 / "memory.limit_in_bytes").exists()
    group = (v1 if is_v1 else v2) / f"{name}_{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit))
    except OSError as error:
        if group.exists():
            group.rmdir()
        unavailable("control group of memory", str(error))
    yield group
    group.rmdir()
