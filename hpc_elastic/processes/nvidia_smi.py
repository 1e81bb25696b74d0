"""The words of ``nvidia-smi``, the program by which the driver of NVIDIA's GPUs tells of them. Pure."""

from __future__ import annotations

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.text import last_words

PROGRAM = "nvidia-smi"
_ALWAYS = ("index", "uuid")


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
    return PROGRAM, f"--query-gpu={','.join((*_ALWAYS, *fields))}", "--format=csv,noheader,nounits"


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
