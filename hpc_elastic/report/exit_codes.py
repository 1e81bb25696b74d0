"""Exit codes in words. Pure."""

from __future__ import annotations

from signal import Signals

from hpc_elastic.ids import ExitCode
from hpc_elastic.typed_json import whole_number

_NAMES = {
    ExitCode.REQUEUE: "left before the run had ended",
    ExitCode.FAILED: "the run failed, not for a worker's exit code",
    ExitCode.FENCED: "a newer start of the run exists",
    ExitCode.WEDGED: "workers hang in the kernel",
    ExitCode.UNFIT: "the node is unfit and stays out",
    ExitCode.HUNG: "the workers hung once too often",
    126: "the program cannot be run",
    127: "the program was not found",
    168: "srun could not start the step: its credential was revoked",
    233: "srun could not reach a node of the job",
}
_SIGNALLED = 128


def code_text(code: int) -> str:
    """Return an exit code as a person would explain it: ``137 (killed by SIGKILL)``.

    Args:
        code: of a process, an agent or a batch script; negative, or 128 + n, for signal n.
    """
    if code in _NAMES:
        return f"{code} ({_NAMES[code]})"
    number = -code if code < 0 else code - _SIGNALLED
    try:
        return f"{code} (killed by {Signals(number).name})"
    except ValueError:
        return str(code)


def job_code_text(field: str) -> str:
    """Return Slurm's ``ExitCode=1:0`` in words; empty for one that says nothing.

    Args:
        field: exit code and signal, with a colon between them.
    """
    code, _, number = field.partition(":")
    exited, signal = whole_number(code), whole_number(number)
    if exited is None or signal is None or field == "0:0":
        return ""
    return f"exit code {code_text(-signal or exited)}"
