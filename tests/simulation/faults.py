"""The faults of a simulated run: what there is, and when each comes, by the seed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tests.simulation.agent import SimulatedAgent
from tests.simulation.lock import LockFile, LockState
from tests.simulation.mount import LATE_S, Mount, Trap
from tests.simulation.world import World

WALL_JUMP_S = 900.0
FREEZES_S = (1.0, 3.0, 10.0, 40.0)  # shorter and longer than a lease
STALLS_S = (1.0, 5.0, 20.0)
ZOMBIE_S = (15.0, 40.0)  # outlives a requeue
_OPERATIONS = ("append", "read", "list", "mark", "get", "put")


class Victim(NamedTuple):
    """A node that something happens to."""

    agent: SimulatedAgent
    mount: Mount


class Run(Protocol):
    """What faults need of a scenario."""

    world: World
    lock: LockFile
    wall_scale: float  # 0: wall clocks are not really set

    def victims(self) -> list[Victim]:
        """Return the nodes of the current start that live."""
        ...

    def lose(self, victim: Victim, *, is_alone: bool) -> None:
        """Kill a node; alone means that nothing else is wrong with it."""
        ...

    def end_by_user(self) -> None:
        """Have the user end the run for good."""
        ...

    def launch(self, victim: Victim) -> None:
        """Start an agent on the same node."""
        ...


Fault = Callable[[Run, Victim], str]


def _kill(run: Run, victim: Victim) -> str:
    run.lose(victim, is_alone=True)
    return "is killed"


def _kill_in_operation(run: Run, victim: Victim) -> str:
    operation, is_after = _moment(run)

    def act() -> None:
        run.world.tell(f"{victim.agent.name} is killed in the {operation}")
        run.lose(victim, is_alone=False)

    victim.mount.trap = Trap(operation, is_after, act)
    return f"will be killed {'after' if is_after else 'before'} its next {operation}"


def _replace(run: Run, victim: Victim) -> str:
    _kill(run, victim)
    run.launch(victim)
    return "is killed and started again"


def _freeze(run: Run, victim: Victim) -> str:
    seconds = run.world.random.choice(FREEZES_S)
    victim.agent.node.freeze(seconds)
    return f"freezes for {seconds} s"


def _freeze_in_operation(run: Run, victim: Victim) -> str:
    operation, is_after = _moment(run)
    seconds = run.world.random.choice(FREEZES_S[1:])

    def act() -> None:
        run.world.tell(f"{victim.agent.name} freezes in the {operation} for {seconds} s")
        victim.agent.node.freeze(seconds)

    victim.mount.trap = Trap(operation, is_after, act)
    return f"will freeze {'after' if is_after else 'before'} its next {operation}"


def _moment(run: Run) -> tuple[str, bool]:
    dice = run.world.random
    operation = dice.choice(_OPERATIONS)
    return operation, dice.random() < 0.5


def _crash(_run: Run, victim: Victim) -> str:
    victim.agent.crash_next = True
    return "has a worker that crashes"


def _wedge(_run: Run, victim: Victim) -> str:
    victim.agent.wedge_next = True
    return "has a worker that hangs in the kernel"


def _signal(_run: Run, victim: Victim) -> str:
    victim.agent.node.signals.append(15)
    return "gets a signal"


def _zombie(run: Run, victim: Victim) -> str:
    """Freeze a node while the others hand the job back; it thaws in the next start of the job."""
    seconds = run.world.random.uniform(*ZOMBIE_S)
    others = [other for other in run.victims() if other.agent is not victim.agent]
    if others:
        run.world.random.choice(others).agent.node.signals.append(15)
    if run.world.random.random() < 0.5:
        _freeze_in_operation(run, victim)
    victim.agent.node.freeze(seconds)
    return f"freezes for {seconds:.1f} s while the job is requeued"


def _stall(run: Run, victim: Victim) -> str:
    return _stall_some(run, [victim])


def _stall_most(run: Run, _victim: Victim) -> str:
    victims = run.victims()
    size = max(1, (2 * len(victims) + 2) // 3)
    return _stall_some(run, run.world.random.sample(victims, size))


def _stall_all(run: Run, _victim: Victim) -> str:
    return _stall_some(run, run.victims())


def _stall_most_briefly(run: Run, _victim: Victim) -> str:
    victims = run.victims()
    size = max(1, (2 * len(victims) + 2) // 3)
    return _stall_some(run, run.world.random.sample(victims, size), 8.0)


def _stall_some(run: Run, victims: list[Victim], most_s: float = STALLS_S[-1]) -> str:
    seconds = min(most_s, run.world.random.choice(STALLS_S))
    is_soft = run.world.random.random() < 0.3
    for victim in victims:
        victim.mount.stall(seconds, is_soft=is_soft)
    names = ", ".join(victim.agent.node.name for victim in victims)
    return f"the store stalls for {seconds} s ({'soft' if is_soft else 'hard'}): {names}"


def _refuse(run: Run, victim: Victim) -> str:
    victim.mount.refuse(run.world.random.choice(STALLS_S), errno.EIO)
    return "gets EIO from all writes for a while"


def _fill(run: Run, _victim: Victim) -> str:
    seconds = run.world.random.choice(STALLS_S)
    for victim in run.victims():
        victim.mount.refuse(seconds, errno.ENOSPC)
    return f"the file system is full for {seconds} s"


def _delay(run: Run, victim: Victim) -> str:
    victim.mount.late_next = run.world.random.uniform(*LATE_S)
    return "has its next write in flight for long"


def _delay_and_kill(run: Run, victim: Victim) -> str:
    """Kill a node whose write is under way: it lands although the node is dead."""
    operation = run.world.random.choice(("append", "mark", "put"))

    def act() -> None:
        victim.mount.late_next = run.world.random.uniform(*LATE_S)
        run.world.at(run.world.now + 0.1, die)

    def die() -> None:
        if not victim.agent.node.is_over:
            run.world.tell(f"{victim.agent.name} is killed with its {operation} in flight")
            run.lose(victim, is_alone=False)

    victim.mount.trap = Trap(operation, is_after=False, act=act)
    return f"will be killed with its next {operation} in flight"


def _share_lock(run: Run, _victim: Victim) -> str:
    run.lock.state = LockState.SHARED
    return f"the lock {LockState.SHARED.value}"


def _lose_lock(run: Run, _victim: Victim) -> str:
    run.lock.state = LockState.STUCK
    return f"the lock {LockState.STUCK.value}"


def _end_by_user(run: Run, _victim: Victim) -> str:
    run.end_by_user()
    return "the user ends the run"


def _jump(run: Run, victim: Victim) -> str:
    jump_s = run.world.wall_random.choice((-WALL_JUMP_S, WALL_JUMP_S))
    victim.agent.node.wall_offset_s += jump_s * run.wall_scale
    return "has its wall clock set"


FAULTS: dict[str, Fault] = {
    "kill": _kill,
    "kill in an operation": _kill_in_operation,
    "replace": _replace,
    "freeze": _freeze,
    "freeze in an operation": _freeze_in_operation,
    "worker crash": _crash,
    "wedge": _wedge,
    "signal": _signal,
    "zombie": _zombie,
    "stall of one": _stall,
    "stall of most": _stall_most,
    "short stall of most": _stall_most_briefly,
    "stall of all": _stall_all,
    "EIO": _refuse,
    "ENOSPC": _fill,
    "late write": _delay,
    "late write and kill": _delay_and_kill,
    "lock shared": _share_lock,
    "lock stuck": _lose_lock,
    "wall clock": _jump,
    "user ends the run": _end_by_user,
}
USUAL = tuple(kind for kind in FAULTS if kind != "user ends the run")
QUIET = frozenset({"wall clock", "lock shared", "lock stuck"})  # keep nobody from acting on a loss
