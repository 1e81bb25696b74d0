"""The part of the probe that runs programs: the user's own check, and what tells of GPUs.

While a program runs the agent shows that it lives, and a signal to the agent ends the program.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import NamedTuple

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.node.probe.place import ProbedNode, ProbingAgent
from hpc_elastic.node.probe.rules import (
    NVIDIA_SMI,
    Measured,
    NodeFinding,
    ProbeOptions,
    judge_command,
    judge_gpus,
)
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, spawn
from hpc_elastic.store.check import probe

_BEAT_S = 0.5
_DYING_S = 2.0
_SHOWN = 10  # lines that a check has printed, the last one is in its verdict
_TAIL = 8192  # bytes of output that are looked at


class Said(NamedTuple):
    """What came of a program."""

    exit_code: int | None  # -n for signal n; None if it took too long
    output: str
    was_interrupted: bool = False  # the agent was signalled meanwhile

    @property
    def last_line(self) -> str:
        """The last line that says something."""
        return next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")


def ask_command(options: ProbeOptions, place: ProbedNode, agent: ProbingAgent) -> tuple[NodeFinding, ...]:
    """Run the user's own check; a node is fit if it ends with 0 in time."""
    said = run_program(("/bin/sh", "-c", options.command), options.timeout, place, agent)
    finding = None if said.was_interrupted else judge_command(said.exit_code, said.last_line, options)
    if finding is None:
        return ()
    for line in said.output.rstrip().splitlines()[-_SHOWN:-1]:
        agent.say(f"health command: {line}")
    return (finding,)


def look_closely(
    measured: Measured, options: ProbeOptions, place: ProbedNode, agent: ProbingAgent
) -> tuple[NodeFinding, ...]:
    """Ask the GPUs' driver, and write into the run directory as agents do."""
    found = tuple(
        NodeFinding(f"run directory: {what}: {why}; hpc-elastic doctor tells more", is_fatal=True)
        for what, why in probe.quick_probe(place.run_dir).items()
        if why
    )
    if not measured.gpus_promised or shutil.which(NVIDIA_SMI[0], path=place.environ.get("PATH")) is None:
        return found
    said = run_program(NVIDIA_SMI, options.timeout, place, agent)
    if said.was_interrupted:
        return found
    if said.exit_code is None:
        text = f"GPUs: nvidia-smi did not end within {options.timeout:g} s; tell the admins"
        return (*found, NodeFinding(text, is_fatal=True))
    return (*found, *judge_gpus(said.exit_code, said.output, measured))


def run_program(argv: tuple[str, ...], timeout_s: float, place: ProbedNode, agent: ProbingAgent) -> Said:
    """Run a program to its end, or until its time is up or the agent is signalled; then it is killed."""
    log = os.path.join(place.scratch, "probe.out")
    more = {Env.NODE: place.node, Env.RUN_DIR: place.run_dir}
    try:
        os.unlink(log)
    except FileNotFoundError:
        pass
    try:
        process = spawn(ProcessSpec(argv, {**place.environ, **more}, stdout=log, stderr=log))
    except InputError as error:
        return Said(127, error.message)
    exit_code = _wait(process, agent.clock.monotonic() + timeout_s, agent)
    was_interrupted = exit_code is None and bool(agent.loop.signals)
    process.signal_group(signal.SIGKILL)  # what it has left behind, too
    if exit_code is not None or _dies(process, agent):
        process.reap()
    return Said(exit_code, _tail(log), was_interrupted)


def _dies(process: ChildProcess, agent: ProbingAgent) -> bool:
    """Wait for the end of a killed program; one that hangs in the kernel is left to itself."""
    until = agent.clock.monotonic() + _DYING_S
    while process.poll() is None and agent.clock.monotonic() < until:
        agent.loop.wait(_DYING_S / 10, [process.pidfd] if process.pidfd is not None else [])
    return process.exit_code is not None


def _wait(process: ChildProcess, until: float, agent: ProbingAgent) -> int | None:
    while process.poll() is None:
        left_s = until - agent.clock.monotonic()
        if left_s <= 0 or agent.loop.signals:
            return None
        agent.loop.wait(min(left_s, _BEAT_S), [process.pidfd] if process.pidfd is not None else [])
        agent.beat()
    return process.exit_code


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
