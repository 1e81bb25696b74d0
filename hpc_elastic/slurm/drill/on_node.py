"""The effect of a drill on processes, on the node where they run: a program of its own.

``python -m hpc_elastic.slurm.drill.on_node RUN_DIR AGENT_PID DEED [RANK]`` prints one line of JSON. It
needs no rights but those of the run's owner, and touches only an agent of that run and its descendants.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.worker.channel import Channel, ChannelError

_RUN_DIR, _RANK, _CHANNEL, _ROUND = (
    "HPC_ELASTIC_RUN_DIR",
    "RANK",
    "HPC_ELASTIC_CHANNEL",
    "HPC_ELASTIC_ROUND",
)


class Deed(str, Enum):
    """The signals for the processes of one node."""

    DRAIN = "drain"  # SIGTERM to the agent, as Slurm's preemption does
    WARN = "warn"  # SIGUSR2 to the agent, as ahead of the time limit
    LOSE = "lose"  # SIGKILL of the agent and of all that it started
    CRASH = "crash"  # SIGKILL of one worker
    HANG = "hang"  # one worker makes no further step
    GO_ON = "go_on"  # it may go on


_TO_AGENT = {Deed.DRAIN: signal.SIGTERM, Deed.WARN: signal.SIGUSR2}
_TO_WORKER = (Deed.CRASH, Deed.HANG, Deed.GO_ON)


def do(run_dir: str, agent: int, deed: Deed, rank: int | None = None) -> dict[str, Any]:
    """Do it.

    Args:
        run_dir: the run; processes of others are not touched.
        agent: process id of the agent on this node.
        deed: the kind of fault.
        rank: the worker, for a fault of one.

    Returns:
        When it was done, by this node's clock [s since the epoch], the process ids that were hit, the
        round whose workers run here (-1 if they do not tell), and the last step that one of them had
        completed (None if it does not tell).

    Raises:
        InputError: the agent does not run here, has no such worker, or it was gone; nothing was done.
    """
    workers = _workers(run_dir, agent)
    if not workers:
        raise InputError(
            f"process {agent} on this node is no agent of {run_dir} with workers",
            where="drill",
            fix="look with hpc-elastic status whether the run has workers now, then try again",
        )
    step = _last_step(workers.values())
    number = max(_number(environ.get(_ROUND, "")) for environ in workers.values())
    if deed in _TO_WORKER:
        hit = [pid for pid, environ in workers.items() if environ.get(_RANK) == str(rank)]
        if not hit:
            ranks = ", ".join(sorted(environ.get(_RANK, "?") for environ in workers.values()))
            raise InputError(f"there is no rank {rank} here, only {ranks}", where="--rank", fix="name one")
    else:
        hit = [agent] if deed in _TO_AGENT else [agent, *_descendants(agent)]
    at = SystemClock().wall()
    if deed in (Deed.HANG, Deed.GO_ON):
        _let_hang(workers[hit[0]], wanted=deed is Deed.HANG)
    else:
        hit = _signal(hit, _TO_AGENT.get(deed, signal.SIGKILL))
    return {"at": at, "pids": hit, "round": number, "step": step}


def _signal(pids: Sequence[int], number: int) -> list[int]:
    """Send a signal to processes, of which the first one is meant; return those that have got it.

    Raises:
        InputError: that one is gone, or belongs to another user.
    """
    hit = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError as error:
            if pid == pids[0]:
                raise InputError(
                    f"process {pid} cannot be signalled: {error.strerror}",
                    where="drill",
                    fix="look with hpc-elastic status how the run stands, then try again",
                ) from None
        else:
            hit.append(pid)
    return hit


def _let_hang(environ: Mapping[str, str], *, wanted: bool) -> None:
    """Have a worker hang at its next step, or go on.

    Raises:
        InputError: it has told no step, so that a hang of it would not show.
    """
    path = environ.get(_CHANNEL, "")
    try:
        channel = Channel.open(path)
    except (OSError, ChannelError) as error:
        raise InputError(f"the worker cannot be reached: {error}", where="--hang") from None
    try:
        if channel.last_step is None:
            raise InputError(
                f"rank {environ.get(_RANK)} has completed no step yet, or tells none",
                where="--hang",
                fix="call hpc_elastic.worker.tick(step) after each step; hangs are not seen without it",
            )
        channel.hang = wanted
    finally:
        channel.close()


def _workers(run_dir: str, agent: int) -> dict[int, Mapping[str, str]]:
    """Return the workers below an agent, by process id with their environment: those of its newest round."""
    found = {}
    for pid in _children(agent):
        environ = _environ(pid)
        if environ.get(_RUN_DIR) == run_dir and environ.get(_RANK, "").isdecimal():
            found[pid] = environ
    newest = max((environ.get(_ROUND, "") for environ in found.values()), key=_number, default="")
    return {pid: environ for pid, environ in found.items() if environ.get(_ROUND, "") == newest}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _last_step(environs: Sequence[Mapping[str, str]] | Any) -> int | None:
    steps = [step for environ in environs if (step := _step_in(environ.get(_CHANNEL, ""))) is not None]
    return max(steps, default=None)


def _step_in(path: str) -> int | None:
    """Return the last step that a worker has told its agent; None if it has told none."""
    try:
        channel = Channel.open(path)
    except (OSError, ChannelError):
        return None
    try:
        return channel.last_step
    finally:
        channel.close()


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in _children(pid):
        found += [child, *_descendants(child)]
    return found


def _environ(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (word.partition("=") for word in words) if name}


def main(words: Sequence[str]) -> int:
    """Carry the command line out and print the result."""
    run_dir, agent, deed, *rank = words
    try:
        done = do(run_dir, int(agent), Deed(deed), int(rank[0]) if rank else None)
    except InputError as error:
        done = {"error": error.message, "fix": error.fix}
    sys.stdout.write(json.dumps(done) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
