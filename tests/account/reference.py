"""The arithmetic of goodput, written down once more and differently: a state for each stretch of time."""

from __future__ import annotations

from typing import NamedTuple

NEXT = {
    "submit": "queue",
    "requeue": "queue",
    "rdzv_start": "meet",
    "formed": "init",
    "first_step": "train",
    "ckpt_begin": "save",
    "ckpt_end": "train",
    "failure_detected": "stop",
    "workers_stopped": "meet",
    "vanished": "down",
    "drain_begin": "drain",
    "held": "held",
    "finished": "end",
    "job_end": "",
}


class Told(NamedTuple):
    """An event on one clock; a tick tells that all ranks are past a step."""

    at: float
    kind: str
    step: int = 0


def expected_seconds(events: list[Told], *, failed: bool) -> dict[str, float]:
    """Return the seconds of each state; they add up to the time from the first event to the last.

    Args:
        events: in order.
        failed: whether the run has failed or is held in the end, so that steps after the last save are lost.
    """
    seconds: dict[str, float] = {}
    segments: list[tuple[int, float]] = []
    best = saved = last = 0
    state, since = "", events[0].at

    def add(name: str, span: float) -> None:
        seconds[name] = seconds.get(name, 0.0) + span

    for at, kind, step in events:
        if kind == "tick":
            new = max(0, step - max(last, best)) / (step - last)
            segments.append((step, (at - since) * new))
            add("again", (at - since) * (1 - new))
            best, last, since = max(best, step), step, at
            continue
        if state:
            silent = state == "train" and kind in {"failure_detected", "vanished"}
            add({"vanished": "down"}.get(kind, "notice") if silent else state, at - since)
        if kind == "first_step":
            last, best = step, max(best, step)
        if kind == "ckpt_end":
            saved = max(saved, step)
        state, since = NEXT[kind], at
    seconds["train"] = seconds.get("train", 0.0) + sum(span for _, span in segments)
    if failed:
        seconds["lost"] = sum(span for step, span in segments if step > saved)
        seconds["train"] -= seconds["lost"]
    return {name: span for name, span in seconds.items() if span}
