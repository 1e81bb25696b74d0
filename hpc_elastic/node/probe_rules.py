"""Whether a node is fit for work, judged from its measurements. Pure.

A finding is the node's own fault, which keeps it out; or it is only reported: a value that is the
same on all nodes (a full run directory, one CPU for all workers) is not mended by leaving one out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.nvidia_smi import Gpu, failure_text, gpus_of, mine, question
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings
from hpc_elastic.settings.values import parse_size
from hpc_elastic.text import count_text

_LOST = "lost|fallen off|err!|unknown error|no devices"  # compiled where GPUs were promised, a millisecond

GIB = 1 << 30
NVIDIA = "/dev/nvidia[0-9]*"
OFF, QUICK, FULL = "off", "quick", "full"
_SLOW_S = 1.0  # for one look into the run directory: told
STUCK_S = 20.0  # the same, and too long to work with


class ProbeOptions(NamedTuple):
    """The questions to a node before it joins, and the limits."""

    mode: str = agents(JobSettings.health_check)
    command: str = ""  # the user's own check, for the shell; empty for none
    # of the user's check, of each program that looks at GPUs, and of the wait for their memory [s]
    timeout: float = agents(JobSettings.health_timeout)
    min_space: int = GIB // 16  # free in the run directory and in the directory for temporary files [bytes]
    min_inodes: int = agents(JobSettings.probe_min_inodes)  # free there
    gpu_devices: str = ""  # pattern of the device files of GPUs; empty for NVIDIA's where there are any

    @classmethod
    def of_settings(cls, settings: AgentSettings) -> ProbeOptions:
        """Return the checks that an agent was given."""
        return cls(
            settings.health_check,
            settings.health_command,
            settings.health_timeout,
            parse_size(settings.probe_min_space),
            settings.probe_min_inodes,
            settings.gpu_devices,
        )


class Disk(NamedTuple):
    """The space left on a file system."""

    path: str
    free: int  # [bytes]
    inodes: int | None  # None where files are not counted
    is_shared: bool  # by all nodes


class Measured(NamedTuple):
    """The measurements of a node."""

    workers: int  # on this node
    gpus_promised: int | None = None  # by Slurm; None if it did not say
    gpus_visible: str | None = None  # CUDA_VISIBLE_DEVICES
    gpu_files: int | None = None  # device files there are; None: not looked for
    gpu_pattern: str = NVIDIA
    disks: tuple[Disk, ...] = ()
    look_s: float = 0.0  # time that a listing of the run directory took [s]
    again_s: float | None = None  # and another one right after it [s]; None: there was none
    clock_went_back: bool = False
    cpus: int = 0  # that this process may use; 0: not counted
    cpus_asked: int | None = None  # that the job has here
    cpus_there: int = 0  # that the machine has; 0: not counted


class NodeFinding(NamedTuple):
    """Something that is not as it should be."""

    text: str  # the quantity, its value, the need, the remedy
    is_fatal: bool  # the node stays out
    is_everywhere: bool = False  # all nodes find the same: one of them tells


def judge(found: Measured, options: ProbeOptions) -> tuple[NodeFinding, ...]:
    """Return the defects of a node, the worst first."""
    findings = [*_gpus(found, options), *_clock(found)]
    findings += [one for disk in found.disks for one in _disk(disk, options)]
    findings += [*_look(found), *_cpus(found)]
    return tuple(sorted(findings, key=lambda finding: not finding.is_fatal))


def _gpus(found: Measured, options: ProbeOptions) -> list[NodeFinding]:
    promised, there = found.gpus_promised, found.gpu_files
    if not promised:
        return []
    if found.gpus_visible == "NoDevFiles":
        return [short_of("GPUs: Slurm found no device files (CUDA_VISIBLE_DEVICES=NoDevFiles)", promised)]
    if there is None or there >= promised:
        return []
    if there == 0 and not options.gpu_devices:  # GPUs of another make have files of other names
        return []
    return [short_of(f"GPUs: {count_text(there, 'device file')} {found.gpu_pattern}", promised)]


def short_of(what: str, promised: int) -> NodeFinding:
    """Return that there are fewer GPUs than promised.

    Args:
        what: how many there are, by whose words.
        promised: how many there should be.
    """
    need = f"{promised} needed, as Slurm has promised"
    return NodeFinding(f"{what}, {need}; tell the admins: the node's GPU driver needs a look", is_fatal=True)


def _clock(found: Measured) -> list[NodeFinding]:
    if not found.clock_went_back:
        return []
    return [NodeFinding("clock: the monotonic clock went back; the node needs a reboot", is_fatal=True)]


def _disk(disk: Disk, options: ProbeOptions) -> list[NodeFinding]:
    mend = "make room or lower --probe-min-space and --probe-min-inodes"
    found = []
    if disk.free < options.min_space:
        found.append(f"{disk.path}: {size_text(disk.free)} free, {size_text(options.min_space)} needed")
    if disk.inodes is not None and disk.inodes < options.min_inodes:
        found.append(f"{disk.path}: {disk.inodes} inodes free, {options.min_inodes} needed")
    fatal, everywhere = not disk.is_shared, disk.is_shared
    return [NodeFinding(f"{text}; {mend}", is_fatal=fatal, is_everywhere=everywhere) for text in found]


def _look(found: Measured) -> list[NodeFinding]:
    if found.look_s < _SLOW_S:
        return []
    text = f"run directory: a listing took {found.look_s:.1f} s, less than {_SLOW_S:g} s is usual"
    is_over = found.again_s is not None and found.again_s < STUCK_S  # an outage, which all nodes had
    is_fatal = found.look_s >= STUCK_S and not is_over
    return [NodeFinding(f"{text}; hpc-elastic doctor tells more", is_fatal=is_fatal)]


def _cpus(found: Measured) -> list[NodeFinding]:
    few = found.cpus and found.cpus < found.workers
    bound = found.cpus and found.cpus_asked and found.cpus < found.cpus_asked
    if not few and not bound:
        return []
    have = count_text(found.cpus, "CPU")
    if few:
        text = f"CPUs: {count_text(found.workers, 'worker')} share {have}"
        text += f" of the {found.cpus_asked} that the job has here" if bound else ""
    else:
        text = f"CPUs: this agent may use {have} of the {found.cpus_asked} that it was given"
    if bound:  # no matter how many the job asks for
        mend = "srun without -c and --cpu-bind=none, taskset or a cgroup keeps it off the others"
    elif found.cpus_there and found.cpus >= found.cpus_there:
        mend = "the machine has no more, so start fewer workers on it"
    else:
        mend = "ask for --cpus-per-node or --exclusive, and give srun -c and --cpu-bind=none"
    return [NodeFinding(f"{text}; {mend}", is_fatal=False, is_everywhere=True)]


def size_text(size: int) -> str:
    """Return a number of bytes for people."""
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


NVIDIA_SMI = question("ecc.errors.uncorrected.volatile.total")  # memory errors since the driver was loaded


def judge_gpus(exit_code: int, output: str, found: Measured) -> tuple[NodeFinding, ...]:
    """Return the defects of the GPUs by the words of ``nvidia-smi``.

    Args:
        exit_code: its exit code.
        output: its output for `NVIDIA_SMI`, or its error.
        found: the GPUs that Slurm has promised, and those of this job.
    """
    if exit_code != 0:
        text = f"GPUs: {failure_text(exit_code, output)}; tell the admins"
        return (NodeFinding(text, is_fatal=True),)
    gpus = mine(gpus_of(output, 1), found.gpus_visible or "")
    findings = []
    if found.gpus_promised and len(gpus) < found.gpus_promised:
        findings.append(short_of(f"GPUs: nvidia-smi lists {len(gpus)}", found.gpus_promised))
    for gpu in gpus:
        name = f"GPU {gpu.number} ({gpu.uuid})"
        (uncorrectable,) = gpu.values
        if re.search(_LOST, f"{gpu.uuid} {uncorrectable}", re.IGNORECASE):
            findings.append(NodeFinding(f"{name} does not answer; tell the admins", is_fatal=True))
        elif uncorrectable.isdecimal() and int(uncorrectable) > 0:
            text = f"{name}: {uncorrectable} uncorrectable memory errors, 0 needed"
            findings.append(NodeFinding(f"{text}; tell the admins: it needs a reset", is_fatal=True))
    return tuple(findings)


MEMORY = question("memory.used", "memory.total", "mig.mode.current")
_SHARED = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "SLURM_SHARDS_ON_NODE")  # set where Slurm shares GPUs out
_MIB_PER_GIB = 1024
_OWN_PART = 20  # of its memory a GPU keeps one part for itself, or a GiB


class GpuInUse(NamedTuple):
    """A GPU with memory in use while no worker of this node runs."""

    gpu: Gpu
    used: int  # [MiB]
    total: int  # [MiB]


def is_shared(environ: Mapping[str, str]) -> bool:
    """Tell whether other jobs may have memory on the GPUs of this one."""
    return any(name in environ for name in _SHARED)


def in_use(output: str, found: Measured) -> tuple[GpuInUse, ...]:
    """Return the GPUs of a job whose memory others hold.

    A GPU that is cut up (MIG) is left out: its memory is that of other jobs, too. So are all where it is not
    known which of them are the job's.

    Args:
        output: of ``nvidia-smi`` for `MEMORY`, while no worker runs.
        found: the GPUs that Slurm has promised, and those of this job.
    """
    gpus = mine(gpus_of(output, 3), found.gpus_visible or "")
    if found.gpus_promised is None or len(gpus) > found.gpus_promised:
        return ()
    taken = []
    for gpu in gpus:
        used, total, mig = gpu.values
        if mig == "Enabled" or not used.isdecimal() or not total.isdecimal():
            continue
        if int(used) > max(_MIB_PER_GIB, int(total) // _OWN_PART):
            taken.append(GpuInUse(gpu, int(used), int(total)))
    return tuple(taken)


def in_use_text(taken: Sequence[GpuInUse], holders: Mapping[str, Sequence[str]]) -> str:
    """Return which GPUs others hold.

    Args:
        taken: the GPUs; at least one.
        holders: the processes on a GPU, by its UUID, as far as they can be seen.
    """
    worst = max(taken, key=lambda one: one.used)
    gib = f"{worst.used / _MIB_PER_GIB:.1f} of {worst.total / _MIB_PER_GIB:.1f} GiB"
    who = ", ".join(holders.get(worst.gpu.uuid, ())) or "a process that cannot be seen from here"
    others = f" (and {count_text(len(taken) - 1, 'GPU')} more)" if len(taken) > 1 else ""
    return f"GPU {worst.gpu.number} ({worst.gpu.uuid}){others}: {gib} are in use by {who}, not by this run"


def judge_command(exit_code: int | None, last_line: str, options: ProbeOptions) -> NodeFinding | None:
    """Return the objection of the user's own check.

    Args:
        exit_code: its exit code; None if it did not end in time.
        last_line: the last line that it printed.
        options: the check and its time.
    """
    if exit_code == 0:
        return None
    how = (
        f"took more than {options.timeout:g} s"
        if exit_code is None
        else f"ended with {exit_code} (0 is needed)"
    )
    said = f": {last_line}" if last_line else f", and printed nothing: {options.command}"
    return NodeFinding(f"health command {how}{said}", is_fatal=True)
