"""Every error hpc_elastic raises on purpose.

HpcElasticError
├── InputError                a value of the user is wrong; raised before anything is queued
│   └── RunDirError           the run directory cannot be used
│       └── TakenOverError    another directory is in its place, or others can write to it
├── UnfitFileError            a file of a run is foreign, no plain file, or far too large (also an OSError)
├── DamagedError              a file does not have the format of this package (also a ValueError)
├── StoreError                an operation on the shared directory failed (also a RuntimeError)
│   └── StoreTimeoutError     a value or a rank did not arrive in time (also a TimeoutError)
│       └── QueueEmptyError   a queue is empty, and the caller does not wait
├── RendezvousError
│   ├── RendezvousClosedError
│   ├── RendezvousTimeoutError
│   ├── RendezvousConnectionError
│   ├── RendezvousStateError
│   └── RendezvousGracefulExitError
└── SlurmError
    ├── SlurmNotFoundError    no Slurm command on PATH
    └── SlurmCommandError     a Slurm command failed; carries Slurm's own words
"""

from __future__ import annotations

from errno import ETIMEDOUT


class HpcElasticError(Exception):
    """Base of all errors of this package."""


class InputError(HpcElasticError):
    """A value given by the user cannot be used.

    Args:
        message: the problem, naming the thing and the value.
        where: the place, for example ``job.toml:7`` or ``--nodes``.
        fix: the way out, as a sentence.
    """

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message, where, fix)
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  fix: {self.fix}" if self.fix else text


class RunDirError(InputError):
    """The run directory is missing, foreign, not writable or holds another run."""


class TakenOverError(RunDirError):
    """Where the run directory was is now another one, or others can write to it: it is not waited for."""


class UnfitFileError(HpcElasticError, OSError):
    """The entry in the place of a file or directory of a run was not made by this package.

    It is an OSError, so that a reader that does not need the file can continue. The file is not absent and
    the file system answers: another try finds the same.

    Args:
        path: the file or directory.
        what: the problem, as a sentence that begins with "it".
        errno: the operating system's error number that comes nearest.
        fix: the way out, as a sentence.
    """

    def __init__(self, path: str, what: str, *, errno: int, fix: str) -> None:
        super().__init__(errno, what, path)
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[object, ...]:
        return _unfit_file, (self.filename, self.strerror, self.errno, self.fix)


def _unfit_file(path: str, what: str, number: int, fix: str) -> UnfitFileError:
    """Make the error anew, as pickle does."""
    return UnfitFileError(path, what, errno=number, fix=fix)


class DamagedError(HpcElasticError, ValueError):
    """A file does not have the format of this package; the message has the problem."""


class StoreError(HpcElasticError, RuntimeError):
    """An operation on the shared directory failed; a RuntimeError as torch's ``DistError`` is.

    Args:
        message: the failed operation, naming the path.
        errno: the operating system's error number, where one told of the failure.
    """

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class StoreTimeoutError(StoreError, TimeoutError):
    """A value or a rank did not arrive in a store in time; the message names the missing ones.

    Args:
        message: the awaited keys or ranks, the place and the limit.
        missing: the keys, or ranks, that did not come.
    """

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message, errno=ETIMEDOUT)
        self.missing = missing


class QueueEmptyError(StoreTimeoutError):
    """There is nothing in a queue of a key-value store, and the caller did not want to wait."""


class RendezvousError(HpcElasticError):
    """Base of the rendezvous errors (names as in torch.distributed.elastic)."""


class RendezvousClosedError(RendezvousError):
    """The run has ended; no node can join it any more."""


class RendezvousTimeoutError(RendezvousError):
    """Too few nodes appeared before the join deadline."""


class RendezvousConnectionError(RendezvousError):
    """The shared directory could not be reached."""


class RendezvousStateError(RendezvousError):
    """A record of the run is damaged or was written by an unknown version."""


class RendezvousGracefulExitError(RendezvousError):
    """This node is not needed in the next round and may leave without failure."""


class SlurmError(HpcElasticError):
    """Base of the errors that have to do with Slurm."""


class SlurmNotFoundError(SlurmError):
    """A Slurm command is not on PATH."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command

    def __str__(self) -> str:
        return (
            f"'{self.command}' is not on PATH, so this machine cannot talk to Slurm\n"
            "  fix: run on a login node of the cluster (module load slurm on some sites), "
            "or try the job here without Slurm: hpc-elastic submit --local N ..."
        )


class SlurmCommandError(SlurmError):
    """A Slurm command exited with an error.

    Args:
        argv: the command as it was run.
        exit_code: its exit code.
        stderr: its output, unchanged.
    """

    def __init__(self, argv: tuple[str, ...], exit_code: int, stderr: str) -> None:
        super().__init__(argv, exit_code, stderr)
        self.argv = argv
        self.exit_code = exit_code
        self.stderr = stderr

    def __str__(self) -> str:
        words = self.stderr.strip() or "(it printed nothing)"
        return f"{self.argv[0]} failed with exit code {self.exit_code}; Slurm says:\n{words}"
