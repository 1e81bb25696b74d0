"""A JSON file that one command writes and the next one reads, and the lock that keeps commands apart."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import DevClusterError


def write(path: Path, form: str, data: Mapping[str, Any]) -> None:
    """Publish the state in one step.

    Args:
        path: the file.
        form: names the program and the version of its format.
        data: what JSON can say.
    """
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"format": form, **data}, indent=1) + "\n")
    draft.replace(path)


def read(path: Path, form: str) -> dict[str, Any] | None:
    """The remembered state; None if nothing was ever started in this directory.

    Raises:
        DevClusterError: another version of this program wrote the file.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if data.pop("format", None) != form:
        raise DevClusterError(f"{path} has an unknown format; use another --dir.")
    return data


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one command at a time change something; the lock dies with its holder."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
