"""What a start of the job was left without having saved, in words. Pure."""

from __future__ import annotations

from hpc_elastic.record.state import RunState
from hpc_elastic.text import count_text


def unsaved_text(state: RunState, saved: int | None) -> str:
    """Return what is missing, to be put behind a sentence; empty if nothing is, or nobody knows.

    All ranks have agreed on a step to stop at, so a checkpoint of it, or a later one, was to be marked.

    Args:
        state: the run when its workers had stopped.
        saved: the step of the newest durable checkpoint, None if none is marked.
    """
    parts = []
    if state.failed_leaving:
        first = state.failed_leaving[0].failure.get("rank", "?")
        more = len(state.failed_leaving) - 1
        also = f", and workers on {count_text(more, 'other node')}" if more else ""
        parts.append(f"rank {first} failed instead of saving{also}")
    if (step := missing_step(state, saved)) is not None:
        newest = "none is" if saved is None else f"the newest is of step {saved}"
        parts.append(f"no checkpoint of step {step} was marked ({newest})")
    return "".join(f"; {part}" for part in parts)


def missing_step(state: RunState, saved: int | None) -> int | None:
    """Return the step that all ranks stopped at without a checkpoint of it; None if there is one."""
    step = state.stop_step
    if step is None or step < 0:
        return None  # the workers do not tell their steps
    return step if saved is None or saved < step else None
