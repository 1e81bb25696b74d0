"""The words of ``nvidia-smi``, the program by which the driver of NVIDIA's GPUs tells of them. Pure."""

from __future__ import annotations

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.text import last_words

PROGRAM = "nvidia-smi"
_ALWAYS = ("index", "uuid")
_NO_UNITS = "--format=csv,noheader,nounits"
PROCESSES = (PROGRAM, "--query-compute-apps=gpu_uuid,pid,process_name", _NO_UNITS)
"""The command that prints a line for each process that computes on a GPU and may be seen."""


class Gpu(NamedTuple):
    """A GPU as its driver tells of it."""

    number: str
    uuid: str
    values: tuple[str, ...] = ()  # of the fields that were asked for, in their order


def question(*fields: str) -> tuple[str, ...]:
    """Return the command that prints a line for each GPU.

    Args:
        fields: asked for beside number and UUID; numbers come without their units.
    """
    return PROGRAM, f"--query-gpu={','.join((*_ALWAYS, *fields))}", _NO_UNITS


def gpus_of(output: str, fields: int) -> list[Gpu]:
    """Return the GPUs in an answer; lines of another form, such as warnings, are left out.

    Args:
        output: of the command.
        fields: how many were asked for; later driver versions may print more.
    """
    words = ([word.strip() for word in line.split(",")] for line in output.splitlines())
    wanted = len(_ALWAYS) + fields
    return [
        Gpu(one[0], one[1], tuple(one[len(_ALWAYS) : wanted]))
        for one in words
        if len(one) >= wanted and one[0].isdecimal()
    ]


class GpuProcess(NamedTuple):
    """A process that computes on a GPU, as its driver tells of it."""

    uuid: str  # of the GPU
    pid: int
    name: str


def processes_of(output: str) -> list[GpuProcess]:
    """Return the processes in an answer to `PROCESSES`; lines of another form are left out."""
    words = ([word.strip() for word in line.split(",", 2)] for line in output.splitlines())
    wanted = PROCESSES[1].count(",") + 1
    return [
        GpuProcess(one[0], int(one[1]), one[2]) for one in words if len(one) == wanted and one[1].isdecimal()
    ]


def mine(gpus: list[Gpu], visible: str) -> list[Gpu]:
    """Return the GPUs that a job may use; all if the list names none of them.

    Args:
        gpus: of the machine.
        visible: CUDA_VISIBLE_DEVICES: numbers, or beginnings of UUIDs.
    """
    wanted = [word for word in visible.split(",") if word]
    chosen = [gpu for gpu in gpus if any(gpu.number == word or gpu.uuid.startswith(word) for word in wanted)]
    return chosen or gpus


def failure_text(exit_code: int, output: str) -> str:
    """Return that the command failed, with its last words.

    Args:
        exit_code: of the command.
        output: its output, errors included.
    """
    return f"{PROGRAM} failed with exit code {exit_code}: {last_words(output) or 'it said nothing'}"
