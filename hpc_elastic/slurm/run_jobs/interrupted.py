"""A submission that was killed before its job was recorded: who made it, and whether he is still at work.

The same command goes on where that one was killed. Only the machine that it ran on can tell that it is gone.
"""

from __future__ import annotations

import os

from hpc_elastic.errors import DamagedError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs.submissions import read_submissions
from hpc_elastic.store import files
from hpc_elastic.typed_json import parse_object

_STARTED = 19  # the place of the start time behind the name in /proc/PID/stat


def creator() -> str:
    """Return this process, for ``run.json``: host, container, process id and start time."""
    return _process(os.getpid())


def _process(pid: int) -> str:
    return f"{os.uname().nodename} {files.pid_namespace()} {pid} {_started(pid)}"


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[_STARTED]
    except (OSError, IndexError):
        return ""


def was_left(paths: RunPaths) -> bool:
    """Tell whether the first submission of a run was killed before its job was recorded.

    Raises:
        RunDirError: a submission's record is damaged.
    """
    words = _creator_of(paths).split()
    if len(words) != len(creator().split()) or not words[2].isdecimal():
        return False
    is_here = words[:2] == creator().split()[:2]
    is_gone = is_here and _process(int(words[2])).split() != words
    done = read_submissions(paths)
    return is_gone and len(done) <= 1 and not any(one.job_id for one in done)


def may_be_made_anew(paths: RunPaths) -> bool:
    """Tell whether nothing was queued by such a submission, so that its files can be written once more."""
    return was_left(paths) and not read_submissions(paths)


def may_be_queued(paths: RunPaths) -> bool:
    """Tell whether such a submission was about to call sbatch, so that Slurm is to be asked first."""
    return was_left(paths) and bool(read_submissions(paths))


def _creator_of(paths: RunPaths) -> str:
    try:
        data = files.read(paths.identity, alone=True)
        found = "" if data is None else parse_object(data).get("creator", "")
    except (OSError, DamagedError):
        return ""
    return found if isinstance(found, str) else ""
