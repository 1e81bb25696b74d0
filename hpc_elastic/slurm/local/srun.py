"""Plays srun on one machine: one agent per pretended node. Started by `local_nodes` only.

As srun with ``--no-kill --kill-on-bad-exit=0 --wait=0``: an agent that dies leaves the others alone,
the exit code is the highest of all, and signals go to the agents.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import die_with_parent
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, WorkerStartError, spawn

READY_FILE = "HPC_ELASTIC_LOCAL_READY"  # where this program writes its process id once it takes signals
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TAKE_A_VALUE = frozenset(("-N", "-n", "-c", "-p", "-A", "-t", "-J", "-o", "-e", "-w", "-x", "-G"))
_START_WAIT_S = 5.0


class LocalStep(NamedTuple):
    """The arguments of srun."""

    nodes: int
    command: tuple[str, ...]
    epilog: str = ""  # a program that runs after each agent, in its environment


def parse(words: Sequence[str]) -> LocalStep:
    """Read srun's arguments; options that mean nothing here are passed over.

    Raises:
        InputError: there is no command, or the node count is none.
    """
    nodes, epilog, at = "1", "", 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word in _TAKE_A_VALUE or (word in ("--nodes", "--ntasks") and not equals):
            value = words[at] if at < len(words) else ""
            at += 1
        if name in ("--nodes", "-N"):
            nodes = value
        if name == "--task-epilog":
            epilog = value
    if not nodes.isdecimal() or int(nodes) < 1:
        raise InputError(f"{nodes!r} is not a node count", where="srun --nodes", fix="give a number")
    if not words[at:]:
        raise InputError("there is no command to run", where="srun", fix="give one after the options")
    return LocalStep(int(nodes), tuple(words[at:]), epilog)


def node_name(index: int) -> str:
    """Return the name of a pretended node, counted from 0."""
    return f"local{index + 1}"


def node_list(nodes: int) -> str:
    """Return the names of the first nodes as Slurm writes them."""
    return node_name(0) if nodes == 1 else f"local[1-{nodes}]"


def task_environ(environ: Mapping[str, str], index: int, nodes: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of an agent, as srun sets it.

    Args:
        environ: the script's environment.
        index: the node, counted from 0.
        nodes: how many there are.
        gpus: the devices of this node; empty to leave them as they are.
    """
    task = {
        **environ,
        "SLURM_STEP_ID": environ.get("HPC_ELASTIC_RELAUNCH", "0"),
        "SLURM_NODEID": str(index),
        "SLURM_PROCID": str(index),
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NODELIST": node_list(nodes),
        "SLURMD_NODENAME": node_name(index),
    }
    if gpus:
        task["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return task


def share_of_gpus(environ: Mapping[str, str], index: int, nodes: int, present: int) -> list[str]:
    """Return the GPUs of one node; none if they were not asked for or do not suffice for all.

    Args:
        environ: the script's environment.
        index: the node, counted from 0.
        nodes: how many there are.
        present: GPUs of this machine.
    """
    wanted = environ.get("SLURM_GPUS_ON_NODE", "")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = [str(n) for n in range(present)] if visible is None else [d for d in visible.split(",") if d]
    each = int(wanted) if wanted.isdecimal() else 0
    return devices[index * each : (index + 1) * each] if each * nodes <= len(devices) else []


def main(words: Sequence[str]) -> int:
    """Run the agents to their end.

    Returns:
        The highest exit code of all agents, 128 + n for one that signal n ended.
    """
    signals = {*FORWARDED, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    script = os.getsid(0)
    die_with_parent(script)
    if not _is_alive(script):
        return 137
    try:
        step = parse(words)
        agents = _start(step)
    except InputError as error:
        _say(str(error))
        return 127 if isinstance(error, WorkerStartError) else 1
    ready = os.environ.get(READY_FILE)  # noqa: TID251 - set by `local_nodes`
    if ready:
        with open(f"{ready}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{ready}.new", ready)
    try:
        return _wait(agents, signals, step.epilog)
    finally:
        if ready:
            os.unlink(ready)


def _say(text: str) -> None:
    sys.stderr.write(f"srun (local): {text}\n")
    sys.stderr.flush()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class _Agent(NamedTuple):
    process: ChildProcess
    environ: dict[str, str]


def _start(step: LocalStep) -> dict[str, _Agent]:
    environ = dict(os.environ)  # noqa: TID251 - the script's, as srun passes it on
    environ.pop(READY_FILE, None)
    present = len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdecimal()])
    agents = {}
    for index in range(step.nodes):
        gpus = share_of_gpus(environ, index, step.nodes, present)
        task = task_environ(environ, index, step.nodes, gpus)
        agents[node_name(index)] = _Agent(spawn(ProcessSpec(step.command, task)), task)
    for agent in agents.values():
        agent.process.confirm_started(_START_WAIT_S)
    return agents


def _wait(agents: dict[str, _Agent], signals: set[signal.Signals], epilog: str) -> int:
    """Wait for all agents and for the epilog of each, which tells the others of one that could not join."""
    highest = 0
    running, epilogs = dict(agents), list[ChildProcess]()
    while True:
        epilogs = [each for each in epilogs if not _has_ended(each)]
        for node in [node for node, agent in running.items() if _has_ended(agent.process)]:
            ended = running.pop(node)
            if epilog:
                epilogs.append(spawn(ProcessSpec((epilog,), ended.environ)))
            highest = max(highest, _code_of(node, ended.process, are_others=bool(running)))
        if not running and not epilogs:
            return highest
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            for agent in running.values():
                os.kill(agent.process.pid, number)


def _code_of(node: str, process: ChildProcess, *, are_others: bool) -> int:
    """Return the exit code of an agent as srun counts it, and tell of a signal that has ended it."""
    code = process.exit_code or 0
    if code >= 0:
        return code
    _say(
        f"{signal.Signals(-code).name} ended the agent of {node}{'; the others go on' if are_others else ''}"
    )
    return 128 - code


def _has_ended(process: ChildProcess) -> bool:
    if process.poll() is None:
        return False
    process.reap()
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
