"""The kind of a file to lint, told by its name and its text. Pure."""

from __future__ import annotations

import os
import re
from enum import Enum

BOM = "\ufeff"
_PYTHON = re.compile(r"#!.*\bpython[\d.]*\b")
_SCRIPT_NAMES = (".sbatch", ".slurm", ".batch", ".job", ".sub", ".sl", ".sh", ".bash")
_OPTION_LINE = re.compile(r"^#SBATCH\s", re.MULTILINE)


class FileKind(Enum):
    """The use of a file."""

    JOB_FILE = "job file"
    TRAINING = "training script"
    SHELL_JOB = "job script"
    PYTHON_JOB = "job script in Python"  # sbatch takes any interpreter


def kind_of(name: str, text: str) -> FileKind | None:
    """Return the kind of a file; None if `lint` does not know it.

    Args:
        name: its path.
        text: its content.
    """
    suffix = os.path.splitext(name)[1].lower()
    plain = text.removeprefix(BOM)
    is_for_sbatch = suffix in _SCRIPT_NAMES or _OPTION_LINE.search(plain) is not None
    if suffix == ".toml":
        return FileKind.JOB_FILE
    if suffix == ".py" or _PYTHON.match(plain):
        return FileKind.PYTHON_JOB if is_for_sbatch else FileKind.TRAINING
    return FileKind.SHELL_JOB if is_for_sbatch or plain.startswith("#!") else None
