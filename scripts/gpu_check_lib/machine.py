"""The GPUs of this machine, by the words of their driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

LOOK_S = 0.05


def query(words: str) -> list[str]:
    """Return the lines that ``nvidia-smi`` prints for a query, such as ``gpu=name``; none without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    argv = ["nvidia-smi", f"--query-{words}", "--format=csv,noheader,nounits"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    return [line.strip() for line in said.stdout.splitlines() if line.strip()] if not said.returncode else []


def gpus() -> list[str]:
    """Return the names of the GPUs."""
    return query("gpu=name")


def on_gpu() -> set[int]:
    """Return the processes with a CUDA context, as far as the driver shows them."""
    return {int(line) for line in query("compute-apps=pid") if line.isdecimal()}


def memory_used_mb() -> int:
    """Return the memory in use on all GPUs [MB]."""
    return sum(int(line) for line in query("gpu=memory.used") if line.isdecimal())


def devices_of(pid: int) -> list[str]:
    """Return the device files of GPUs that a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return sorted(name for name in found if name.startswith("/dev/nvidia"))


def alive(pids: Iterable[int]) -> list[int]:
    """Return which processes live."""
    return [pid for pid in pids if _state(pid) not in {"", "Z"}]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(is_so: Callable[[], object], limit_s: float) -> float | None:
    """Wait until something is so; return after how long [s], None if it is not so in time."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(LOOK_S)
    return time.monotonic() - began
