"""What programs that look at a node say against it: the GPUs' driver, the user's own check. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from hpc_elastic.node.probe.rules import Finding, Measured, ProbeOptions, short_of

_LOST = re.compile(r"lost|fallen off|err!|unknown error|no devices", re.IGNORECASE)


class Gpu(NamedTuple):
    """A GPU as its driver tells of it."""

    number: str
    uuid: str
    uncorrectable: str  # memory errors since the driver was loaded


NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,uuid,ecc.errors.uncorrected.volatile.total",
    "--format=csv,noheader,nounits",
)


def judge_gpus(exit_code: int, output: str, found: Measured) -> tuple[Finding, ...]:
    """Return what is wrong with the GPUs by the words of ``nvidia-smi``.

    Args:
        exit_code: what it ended with.
        output: what it printed for `NVIDIA_SMI`, or of what it failed.
        found: what Slurm has promised and which GPUs are this job's.
    """
    last = (output.strip().splitlines() or ["it said nothing"])[-1]
    if exit_code != 0:
        text = f"GPUs: nvidia-smi failed with exit code {exit_code}: {last}"
        return (Finding(f"{text}; tell the admins", is_fatal=True),)
    gpus = mine([gpu for gpu in map(_gpu, output.splitlines()) if gpu], found.gpus_visible or "")
    findings = []
    if found.gpus_promised and len(gpus) < found.gpus_promised:
        findings.append(short_of(f"GPUs: nvidia-smi lists {len(gpus)}", found.gpus_promised))
    for gpu in gpus:
        name = f"GPU {gpu.number} ({gpu.uuid})"
        if _LOST.search(f"{gpu.uuid} {gpu.uncorrectable}"):
            findings.append(Finding(f"{name} does not answer; tell the admins", is_fatal=True))
        elif gpu.uncorrectable.isdecimal() and int(gpu.uncorrectable) > 0:
            text = f"{name}: {gpu.uncorrectable} uncorrectable memory errors, 0 needed"
            findings.append(Finding(f"{text}; tell the admins: it needs a reset", is_fatal=True))
    return tuple(findings)


def _gpu(line: str) -> Gpu | None:
    words = [word.strip() for word in line.split(",")]
    return Gpu(*words[:3]) if len(words) >= len(Gpu._fields) else None


def mine(gpus: list[Gpu], visible: str) -> list[Gpu]:
    """Return the GPUs that a job may use; all if the list names none of them."""
    wanted = [word for word in visible.split(",") if word]
    chosen = [gpu for gpu in gpus if any(gpu.number == word or gpu.uuid.startswith(word) for word in wanted)]
    return chosen or gpus


def judge_command(exit_code: int | None, last_line: str, options: ProbeOptions) -> Finding | None:
    """Return what the user's own check says against a node.

    Args:
        exit_code: what it ended with; None if it did not end in time.
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
    return Finding(f"health command {how}{said}", is_fatal=True)
