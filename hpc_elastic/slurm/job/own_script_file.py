"""Reading the file of a job script of the user's own."""

from __future__ import annotations

import re

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.own_script import OwnScript, parse_own_script
from hpc_elastic.store.plain_file import absence_fix, access_fix, given_file, open_plain

MOST_BYTES = 64 << 20
_HEAD = 65536  # bytes of a file that are looked through for options of sbatch
_OF_NO_SHELL = (".toml", ".py")  # such a file may have options of sbatch in a comment or a text


def is_script(path: str) -> bool:
    """Tell whether a file begins as a script does; one that cannot be read is none."""
    try:
        with open(open_plain(path, own=False), "rb") as file:
            return file.read(2) == b"#!"
    except (OSError, ValueError):
        return False


def is_job_script(path: str) -> bool:
    """Tell whether a file that may be a worker is a job script: one of a shell, or with options of sbatch."""
    if not is_script(path):
        return _has_options(path)
    own = read_own_script(path)
    return own.is_of_shell or bool(own.option_lines)


def _has_options(path: str) -> bool:
    """Tell whether a line of a file asks for something from sbatch, which wants an interpreter above it."""
    if path.endswith(_OF_NO_SHELL):
        return False
    try:
        with open(open_plain(path, own=False), "rb") as file:
            return re.search(rb"^#SBATCH\s", file.read(_HEAD), re.MULTILINE) is not None
    except (OSError, ValueError):
        return False


def read_own_script(path: str) -> OwnScript:
    """Read a job script, and refuse one that sbatch refuses.

    Raises:
        InputError: it does not exist, cannot be read, is too large, has no interpreter, or lines of DOS.
    """
    try:
        data = given_file(path, limit=MOST_BYTES).data
    except FileNotFoundError:
        raise InputError(
            f"the job script {path} does not exist", where=path, fix=absence_fix(path, "check the path")
        ) from None
    except OSError as error:
        fix = access_fix(path, "r") if isinstance(error, PermissionError) else "name a job script"
        raise InputError(f"the job script cannot be read: {error.strerror}", where=path, fix=fix) from None
    return parse_own_script(path, data)
