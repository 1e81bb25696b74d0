"""The state of a process as Linux tells it in ``/proc/<pid>/stat``."""

from __future__ import annotations

__all__ = ["is_uninterruptible_state", "read_proc_state"]


def read_proc_state(pid: int) -> str | None:
    """Return the letter of a process's state, such as R, S, D or Z; None if it is unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # the name before it stands in brackets and may hold brackets and spaces
    rest = line.rpartition(b")")[2].split()
    return rest[0].decode("ascii", "replace") if b")" in line and rest else None


def is_uninterruptible_state(state: str | None) -> bool:
    """Tell whether a process in this state takes no signal, not even SIGKILL, until the kernel is done."""
    return state is not None and state.startswith("D")
