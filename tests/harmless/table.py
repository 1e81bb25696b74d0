"""The ways in which each program of the zoo runs, and the faults of each."""

from __future__ import annotations

from typing import NamedTuple

ANY_STEP = frozenset({"save", "failed save", "load", "again"})  # phases whose step does not matter
MARK = "tests.harmless: "  # begins a line about a fault or a beginning in the log


class Fault(NamedTuple):
    """A fault that happens once, on the last rank.

    Attributes:
        phase: ``forward``, ``backward``, ``step`` (inside it), ``between`` (the step and `done`),
            ``evaluation`` (after the step), ``evaluation first`` (before it), ``save``, ``failed save``,
            ``load``; ``again``: in the first step that is made after another fault.
        step: in which it happens, counted from 0; it matters for some of them alone.
        is_kill: the process is killed; else it raises.
    """

    phase: str
    step: int = 0
    is_kill: bool = False


_BEFORE = Fault("forward", 6)


class Row(NamedTuple):
    """A way to run a program.

    Attributes:
        title: the head of its column.
        has_agent: an agent starts it.
        saves: it has `Checkpoints`.
        faults: in their order.
    """

    title: str
    has_agent: bool
    saves: bool
    faults: tuple[Fault, ...] = ()


ROWS: dict[str, Row] = {
    "bare": Row("bare", has_agent=False, saves=False),
    "agent": Row("agent", has_agent=True, saves=False),
    "preload": Row("preload", has_agent=True, saves=False),
    "files": Row("files", has_agent=False, saves=True),
    "memory": Row("agent, `Checkpoints`", has_agent=True, saves=True),
    "forward": Row("forward", has_agent=True, saves=True, faults=(Fault("forward", 6),)),
    "backward": Row("backward", has_agent=True, saves=True, faults=(Fault("backward", 6),)),
    "step": Row("in the step", has_agent=True, saves=True, faults=(Fault("step", 7),)),
    "between": Row("after the step", has_agent=True, saves=True, faults=(Fault("between", 6),)),
    "evaluation": Row("evaluation", has_agent=True, saves=True, faults=(Fault("evaluation", 5),)),
    "evaluation first": Row(
        "evaluation before the step", has_agent=True, saves=True, faults=(Fault("evaluation first", 6),)
    ),
    "save": Row("killed in a save", has_agent=True, saves=True, faults=(Fault("save", is_kill=True),)),
    "failed save": Row("failed save", has_agent=True, saves=True, faults=(Fault("failed save"),)),
    "load": Row("load", has_agent=True, saves=True, faults=(_BEFORE, Fault("load"))),
    "again": Row("first step after it", has_agent=True, saves=True, faults=(_BEFORE, Fault("again"))),
    "killed": Row("killed", has_agent=True, saves=True, faults=(Fault("backward", 6, is_kill=True),)),
}
_KILLED = Fault("backward", 12, is_kill=True)
ALL = (
    *(Fault("forward", 3), Fault("evaluation", 5), Fault("evaluation first", 6), Fault("backward", 7)),
    *(Fault("failed save"), Fault("step", 8), Fault("between", 10), _KILLED, Fault("save", is_kill=True)),
    *(Fault("forward", 14), Fault("load"), Fault("again")),
)
EVERY_FAULT = Row("all in a row", has_agent=True, saves=True, faults=ALL)
_KILLED_IN = (
    *(("forward", 3), ("backward", 5), ("step", 6), ("evaluation first", 9), ("evaluation", 11), ("save", 0)),
    *(("between", 13), ("forward", 14), ("load", 0)),
)
TWICE = Row(
    "killed twice in each phase",
    has_agent=True,
    saves=True,
    faults=tuple(Fault(phase, step, is_kill=True) for phase, step in _KILLED_IN for _ in range(2)),
)
HARMLESS = ("agent", "files", "memory")


def row_of(name: str) -> Row:
    """Return a row by its name."""
    return {"all": EVERY_FAULT, "twice": TWICE}.get(name) or ROWS[name]
