"""Whether a node is fit for work, tried before it joins."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from hpc_elastic.clock import Clock
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.probe_rules import (
    FULL,
    MEMORY,
    NVIDIA,
    NVIDIA_SMI,
    OFF,
    STUCK_S,
    Disk,
    Measured,
    NodeFinding,
    ProbeOptions,
    in_use,
    in_use_text,
    is_shared,
    judge,
    judge_command,
    judge_gpus,
)
from hpc_elastic.processes.nvidia_smi import PROCESSES, PROGRAM, processes_of
from hpc_elastic.processes.process import ChildProcess, ProcessSpec, spawn
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.state import RunState
from hpc_elastic.store.check import probe

_BEAT_S = 0.5
_DYING_S = 2.0
_MEMORY_LOOK_S = 1.0  # between two looks at the memory of GPUs that others hold
_SHOWN = 10  # lines that a check has printed, the last one is in its verdict
_TAIL = 8192  # bytes of output that are looked at

_FAILURES = (Cause.CRASH, Cause.HANG)


class Probe:
    """Tells before each round whether this node is fit for it."""

    def __init__(self, options: ProbeOptions, place: ProbedNode, agent: ProbingAgent) -> None:
        self._options = options
        self._place = place
        self._agent = agent
        self._was_asked = False
        self._told: set[str] = set()

    def __call__(self, state: RunState) -> str:
        """Return why this node must not join, empty if it may.

        The first time everything is looked at, later only after a failure of workers on this node.
        """
        ended = state.ended
        failed_here = ended is not None and ended.cause in _FAILURES and self._place.node in ended.nodes
        if self._was_asked and not failed_here:
            return ""
        self._was_asked = True
        return self._tell(self._look(failed_here=failed_here))

    def _look(self, *, failed_here: bool) -> tuple[NodeFinding, ...]:
        options = self._options
        found: tuple[NodeFinding, ...] = ()
        if options.mode != OFF:
            measured = measure(self._place, options, self._agent.clock)
            found = judge(measured, options)
            if options.mode == FULL:
                found += look_closely(measured, options, self._place, self._agent)
            if (failed_here or options.mode == FULL) and not any(one.is_fatal for one in found):
                found += look_at_memory(measured, options, self._place, self._agent)
        if options.command and not any(one.is_fatal for one in found):
            found += ask_command(options, self._place, self._agent)
        return found

    def _tell(self, findings: tuple[NodeFinding, ...]) -> str:
        for finding in findings:
            is_mine = self._place.is_first or not finding.is_everywhere
            if is_mine and not finding.is_fatal and finding.text not in self._told:
                self._told.add(finding.text)
                self._agent.say(f"warning: {finding.text}")
        return next((finding.text for finding in findings if finding.is_fatal), "")


def measure(place: ProbedNode, options: ProbeOptions, clock: Clock) -> Measured:
    """Measure the cheap values; a value that cannot be measured is left out."""
    took_s = _listing_s(place.listed, clock)
    again_s = _listing_s(place.listed, clock) if took_s >= STUCK_S else None
    temporary = place.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the default of programs
    disks = (_disk(place.run_dir, is_shared=True), _disk(temporary, is_shared=False))
    pattern = options.gpu_devices or NVIDIA
    return Measured(
        gpus_promised=place.gpus,
        gpus_visible=place.environ.get("CUDA_VISIBLE_DEVICES"),
        gpu_files=count_files(pattern) if place.gpus else None,
        gpu_pattern=pattern,
        disks=tuple(disk for disk in disks if disk is not None),
        look_s=max(took_s, 0.0),
        again_s=again_s,
        clock_went_back=took_s < 0,
        cpus=len(os.sched_getaffinity(0)) if place.below_slurm else 0,
        cpus_asked=_cpus_asked(place.environ),
        cpus_there=os.cpu_count() or 0,
        workers=place.workers,
    )


def _listing_s(directory: str, clock: Clock) -> float:
    """Return how long a listing of a directory takes [s]."""
    before = clock.monotonic()
    try:
        os.listdir(directory)
    except OSError:
        pass
    return clock.monotonic() - before


def _cpus_asked(environ: Mapping[str, str]) -> int | None:
    """Return the CPUs of this node that the job has; Slurm's files may tell of more than there are."""
    text = environ.get("SLURM_CPUS_ON_NODE", "")
    return min(int(text), os.cpu_count() or 1) if text.isdecimal() else None


def _disk(path: str, *, is_shared: bool) -> Disk | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    inodes = found.f_favail if found.f_files else None
    return Disk(path, found.f_bavail * found.f_frsize, inodes, is_shared)


def count_files(pattern: str) -> int | None:
    """Return how many names match a pattern whose last part may have wildcards; None if unknown."""
    from fnmatch import fnmatchcase  # noqa: PLC0415 - only where GPUs were promised

    directory, last = os.path.split(pattern)
    try:
        return sum(fnmatchcase(name, last) for name in os.listdir(directory or "."))
    except FileNotFoundError:
        return 0
    except OSError:
        return None


class ProbedNode(NamedTuple):
    """The node, as far as its probe has to know it."""

    node: str
    run_dir: str
    listed: str  # directory below it that is small and always there
    scratch: str  # private node-local directory
    workers: int
    environ: Mapping[str, str]
    below_slurm: bool
    gpus: int | None  # that Slurm has promised this node; None if it says nothing
    is_first: bool  # tells the findings of all nodes


class ProbingAgent(NamedTuple):
    """The agent around the probe."""

    loop: EventLoop
    clock: Clock
    say: Callable[[str], None]
    beat: Callable[[], object]  # shows that the agent lives; called while a program runs


class Said(NamedTuple):
    """The result of a program."""

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
    if not measured.gpus_promised or not _has_nvidia_smi(place):
        return found
    said = run_program(NVIDIA_SMI, options.timeout, place, agent)
    if said.was_interrupted:
        return found
    if said.exit_code is None:
        text = f"GPUs: nvidia-smi did not end within {options.timeout:g} s; tell the admins"
        return (*found, NodeFinding(text, is_fatal=True))
    return (*found, *judge_gpus(said.exit_code, said.output, measured))


def look_at_memory(
    measured: Measured, options: ProbeOptions, place: ProbedNode, agent: ProbingAgent
) -> tuple[NodeFinding, ...]:
    """Look whether others hold memory of this job's GPUs, and wait for them to let go of it.

    No worker of this node runs now. The driver frees the memory of those that have ended a little later.
    """
    if not measured.gpus_promised or is_shared(place.environ) or not _has_nvidia_smi(place):
        return ()
    until, text = agent.clock.monotonic() + options.timeout, ""
    while True:
        said = run_program(MEMORY, options.timeout, place, agent)
        taken = in_use(said.output, measured) if said.exit_code == 0 else ()
        if not taken:
            return ()
        if not text:
            text = in_use_text(taken, _holders(options, place, agent))
            agent.say(f"{text}; waiting for up to {options.timeout:g} s")
        if agent.loop.signals:
            return ()
        if agent.clock.monotonic() >= until:
            text = f"{text}, after {options.timeout:g} s; end it, or tell the admins"
            return (NodeFinding(text, is_fatal=True),)
        agent.loop.wait(_MEMORY_LOOK_S)
        agent.beat()


def _holders(options: ProbeOptions, place: ProbedNode, agent: ProbingAgent) -> dict[str, list[str]]:
    """Return the processes that compute on GPUs, in words, by the UUID of the GPU."""
    said = run_program(PROCESSES, options.timeout, place, agent)
    holders: dict[str, list[str]] = {}
    for one in processes_of(said.output) if said.exit_code == 0 else ():
        holders.setdefault(one.uuid, []).append(
            f"process {one.pid} ({os.path.basename(one.name)}{_of_user(one.pid)})"
        )
    return holders


def _of_user(pid: int) -> str:
    """Return the owner of a process, as the end of its description; empty if that is not known."""
    import pwd  # noqa: PLC0415 - rare

    try:
        return f" of {pwd.getpwuid(os.stat(f'/proc/{pid}').st_uid).pw_name}"
    except (OSError, KeyError):
        return ""


def _has_nvidia_smi(place: ProbedNode) -> bool:
    import shutil  # noqa: PLC0415 - with compressions, which most agents start without

    return shutil.which(PROGRAM, path=place.environ.get("PATH")) is not None


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
    process.signal_group(signal.SIGKILL)  # its descendants, too
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
