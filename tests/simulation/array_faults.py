"""What happens to single tasks of an array, and to its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tests.simulation import faults
from tests.simulation.faults import ZOMBIE_S, Victim

SIGTERM = 15


class ArrayRun(faults.Run, Protocol):
    """What these faults need of a scenario."""

    def again(self, task: str) -> None:
        """Have Slurm start a task anew, whether its last agent is gone or not."""
        ...

    def scale(self, size: int, spares: int | None) -> None:
        """Have a command on a login node ask for another size."""
        ...


def _leave(_run: ArrayRun, victim: Victim) -> str:
    victim.agent.node.signals.append(SIGTERM)
    return "is preempted alone"


def _all_leave(run: ArrayRun, _victim: Victim) -> str:
    """Preempt all tasks within a second: the run is left as a whole and meets again."""
    for victim in run.victims():
        signal = partial(victim.agent.node.signals.append, SIGTERM)
        run.world.at(run.world.now + run.world.random.random(), signal)
    return "all tasks are preempted"


def _leave_and_die(run: ArrayRun, victim: Victim) -> str:
    """Preempt a task and kill it while it saves or says so."""
    victim.agent.node.signals.append(SIGTERM)

    def die() -> None:
        if not victim.agent.node.is_over:
            run.world.tell(f"{victim.agent.name} is killed while it leaves")
            run.lose(victim, is_alone=False)

    run.world.at(run.world.now + run.world.random.uniform(0.0, 2.0), die)
    return "is preempted, and will be killed on its way out"


def _cut_off(run: ArrayRun, victim: Victim) -> str:
    """Cut a node off from the run directory; Slurm starts its task anew meanwhile."""
    start = victim.agent.start.task
    assert start is not None
    seconds = run.world.random.uniform(*ZOMBIE_S)
    if run.world.random.random() < 0.5:
        victim.agent.node.freeze(seconds)
    else:
        victim.mount.stall(seconds, is_soft=run.world.random.random() < 0.5)
    run.world.at(run.world.now + run.world.random.uniform(1.0, 12.0), lambda: run.again(start.task))
    return f"is cut off for {seconds:.1f} s, and its task starts anew"


def _again(run: ArrayRun, victim: Victim) -> str:
    """Start a task anew beside its agent, which is well: slurmd has lost sight of it."""
    start = victim.agent.start.task
    assert start is not None
    run.again(start.task)
    return "is well, and its task starts anew"


def _scale(run: ArrayRun, _victim: Victim) -> str:
    size = run.world.random.randint(2, 5)
    spares = run.world.random.choice((None, 0, 1))
    run.scale(size, spares)
    return f"the user wants {size} nodes, spares: {spares}"


ARRAY_FAULTS: dict[str, Callable[..., str]] = {
    "leave": _leave,
    "all leave": _all_leave,
    "leave and die": _leave_and_die,
    "cut off": _cut_off,
    "started anew": _again,
    "scale": _scale,
}
