"""Values of single flags of ``hpc-elastic run``: the text as a typed value, or one clear error."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Mapping

from hpc_elastic.errors import InputError, SlurmError
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.node.setup.agent_setup import SignalMeanings
from hpc_elastic.settings.of_commands import RunSettings
from hpc_elastic.settings.setting import LOCAL_RANKS, STREAMS, ValueKind, agents
from hpc_elastic.settings.values import BadValueError, names
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.typed_json import whole_number

TORCHS_SIGNALS = agents(RunSettings.signals_to_handle)
_MOST_SLOTS = 10**6
_HIDDEN = ("", "NoDevFiles")


def slots(text: str | None, slurm: SlurmEnv | None, environ: Mapping[str, str]) -> int:
    """Return the number of workers on this node.

    Args:
        text: ``--nproc-per-node``; None means one per GPU under Slurm, else one.
        slurm: the resources that Slurm gave this node.
        environ: for the GPUs a scheduler has made visible.
    """
    if text is not None and 0 < (whole_number(text) or 0) <= _MOST_SLOTS:
        return int(text)
    if text is None:
        return (gpus(slurm, environ) or 1) if slurm else 1
    if text == "cpu":
        return len(os.sched_getaffinity(0))
    if text in ("gpu", "auto"):
        found = gpus(slurm, environ)
        if not found and text == "gpu":
            raise InputError(
                "gpu: no GPU is visible on this node",
                where="--nproc-per-node",
                fix="give a number or cpu, or ask the scheduler for GPUs",
            )
        return found or len(os.sched_getaffinity(0))
    raise InputError(f"{text!r} is not a number of workers", where="--nproc-per-node", fix=_instead_of(text))


def _instead_of(text: str) -> str:
    if text.isalpha():
        return f"write how many: devices of the kind {text} are not counted here; N, auto, gpu or cpu"
    return "use N (1 or more), auto, gpu or cpu"


def gpus(slurm: SlurmEnv | None, environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that workers on this node can use, without asking a driver.

    The devices that a scheduler or a user has made visible count first, then Slurm's own (a job of whole
    nodes need not have asked for GPUs: then only Slurm knows how many it has on which node), then
    the kernel's: of NVIDIA by device files, of AMD by the topology of its driver.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            return _visible(environ[name])
    if slurm is not None and slurm.gpus_on_node:
        return slurm.gpus_on_node
    if slurm is not None and slurm.has_gpus_untold and (told := _told_by_slurm(slurm)) is not None:
        return told
    nvidia = [name for name in _names("/dev") if name.startswith("nvidia") and name[6:].isdecimal()]
    return len(nvidia) or _amd_gpus()


def _told_by_slurm(slurm: SlurmEnv) -> int | None:
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415 - only for nodes that may differ

    try:
        return Slurm().gpus_on_nodes(slurm.job_ref).get(slurm.node_name)
    except SlurmError:
        return None


def _visible(text: str) -> int:
    """Return how many devices a list names; as for CUDA, a device after ``-1`` is not visible."""
    found = [word.strip() for word in text.split(",")]
    end = found.index("-1") if "-1" in found else len(found)
    return len([word for word in found[:end] if word not in _HIDDEN])


def _amd_gpus(root: str = "/sys/class/kfd/kfd/topology/nodes") -> int:
    """Count the nodes of the driver's topology that have compute units; the others are CPUs."""
    count = 0
    for name in _names(root):
        try:
            with open(os.path.join(root, name, "properties"), encoding="ascii") as file:
                words = [line.split() for line in file]
        except OSError:
            continue
        count += any(word[:1] == ["simd_count"] and word[1:] != ["0"] for word in words)
    return count


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def streams(where: str, text: str) -> Std | dict[int, Std]:
    """Return which streams of which local ranks ``--redirects`` or ``--tee`` means."""
    return Std.from_str(_sound(STREAMS, where, text))


def local_ranks(text: str) -> set[int] | None:
    """Return the local ranks whose output is shown; None for all."""
    sound = _sound(LOCAL_RANKS, "--local-ranks-filter", text)
    return set(map(int, sound.split(","))) if sound else None


def _sound(kind: ValueKind[str], where: str, text: str) -> str:
    """Return a value that a program may have put in the place of one that the parser has read."""
    try:
        return kind.parse(text)
    except BadValueError as error:
        raise InputError(error.message, where=where, fix=error.fix) from None


def signals(where: str, wanted: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of signals by their names, with or without SIG."""
    found = []
    for name in wanted:
        full = name.upper()
        full = full if full.startswith("SIG") else f"SIG{full}"
        if full not in signal.Signals.__members__ or full in ("SIGKILL", "SIGSTOP"):
            raise InputError(
                f"{name!r} is not a signal that can be caught", where=where, fix="use TERM, USR1 ..."
            )
        found.append(int(signal.Signals[full]))
    return tuple(found)


def meanings(
    drain: Iterable[str],
    warning: Iterable[str],
    handled: str | None,
    ignored: Collection[int] = (),
) -> SignalMeanings:
    """Return the meaning of each signal to the agent.

    Args:
        drain: ``--drain-signals``.
        warning: ``--warning-signals``.
        handled: ``--signals-to-handle``: a signal in it that means nothing else ends the run as those
            of `drain` do; one of torch's four that is not in it keeps the system's action.
        ignored: signals that stay as they are unless `handled` is given; SIGHUP below ``nohup``.
    """
    caught = signals("--signals-to-handle", names(TORCHS_SIGNALS if handled is None else handled))
    left_alone = (
        set(signals("", names(TORCHS_SIGNALS))) - set(caught) if handled is not None else set(ignored)
    )
    drains = signals("--drain-signals", drain)
    warns = signals("--warning-signals", warning)
    interrupts = SignalMeanings().interrupt
    more = tuple(number for number in caught if number not in (*drains, *warns, *interrupts))
    return SignalMeanings(
        drain=tuple(number for number in (*drains, *more) if number not in left_alone),
        warning=tuple(number for number in warns if number not in left_alone),
        interrupt=tuple(number for number in interrupts if number not in left_alone),
    )
