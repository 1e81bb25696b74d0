"""The functions for training code: progress, stop requests and checkpoint marks.

Works the same with and without an agent (without one, nothing ever asks to stop), imports
neither torch nor the agent, and a call costs less than a microsecond::

    from hpc_elastic import worker

    saved = worker.latest_checkpoint()
    start = load(saved.path) if saved else 0
    for step in range(start, total):
        train(step)
        worker.tick(step + 1, total)
        if worker.should_stop():
            save(path)  # below worker.run_dir()
            worker.checkpoint_saved(step + 1, path)
            break
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from hpc_elastic.record.checkpoints import Checkpoint
    from hpc_elastic.worker.progress import AtomicWrite, Block, CriticalSection, WorkerProgress

__all__ = [
    "atomic_write",
    "attached",
    "checkpoint_saved",
    "critical",
    "give_up",
    "latest_checkpoint",
    "report_bad_node",
    "resumed",
    "run_dir",
    "section",
    "should_stop",
    "tick",
    "time_left",
]

_attached: list[WorkerProgress] = []  # at most one: this process's place in the run


def _progress() -> WorkerProgress:
    if not _attached:
        from os import environ  # noqa: PLC0415, TID251 - here a process learns its place

        from hpc_elastic.worker.progress import WorkerProgress  # noqa: PLC0415 - the agent does not need it

        _attached.append(WorkerProgress.from_environment(environ))
    return _attached[0]


def tick(step: int, total: int | None = None) -> None:
    """Tell the agent that this rank has completed `step` steps in total.

    Args:
        step: steps completed since the very first start of the run, counted over restarts.
        total: steps of the whole run, for `status`, which then shows the time left; None: not known.

    Raises:
        InputError: `step` or `total` is no whole number, or negative.
    """
    _progress().tick(step, total)


def resumed(step: int, *, name: str = "") -> None:
    """Tell the agent that this rank goes on from `step`, before its first `tick`.

    Only needed where that is not the newest checkpoint of `checkpoint_saved`, for example a state from the
    memory of another rank: then the account does not count the steps between the two as lost. An earlier
    step, after steps or saves too, is a way back: no later start goes on from the newer checkpoints, which
    stay where they are.

    Args:
        step: steps completed in the state that was loaded, as of `tick`; 0: the very beginning.
        name: as of `checkpoint_saved`.

    Raises:
        InputError: `step` is no whole number, or negative.
        OSError: a way back could not be recorded.
    """
    _progress().resumed(step, name)


def branch() -> int:
    """Return how often this process has gone back to an earlier step."""
    return _progress().branch


def section(name: str, timeout: float | None = None) -> Block:
    """Name a block of code that takes its own time, such as an evaluation.

    Use as ``with worker.section("eval", timeout=600): ...`` in the thread that ticks. Time in it does
    not count as time between two ticks. Sections may follow one another and lie in one another.

    Args:
        name: short; the name of the block in hang reports.
        timeout: how long the whole block may take [s]; None: as long as it has been seen to take, and more.

    Raises:
        InputError: the name is no text, or the timeout not positive.
    """
    return _progress().section(name, timeout)


def should_stop() -> bool:
    """Say whether to save a checkpoint and leave the loop now.

    All ranks that call `tick` and `should_stop` at the same steps get True at the same step.
    May wait a moment (at most HPC_ELASTIC_STOP_WAIT_S, 30 s) while that step is being agreed.
    """
    return _progress().should_stop()


def report_bad_node(reason: str) -> None:
    """Say that this node is bad, for example for a wrong result of a device.

    The agents end the round, and this node stays out of the run as one whose health probe failed; the
    user's ledger of bad nodes gets the reason. Returns at once; the agent ends this process within about
    a second. The first word of a process counts, of this and `give_up`. Without an agent it is only printed.

    Args:
        reason: a short text, of which 512 bytes are kept; `status`, `report` and the ledger show it.

    Raises:
        InputError: the reason is no text, or empty.
    """
    _progress().report_bad_node(reason)


def give_up(reason: str) -> None:
    """Say that no restart helps, for example because the loss has diverged.

    The agents end all workers and the run as failed; it is neither restarted nor requeued. Returns at
    once; the agent ends this process within about a second. Without an agent it is only printed.

    Args:
        reason: as in `report_bad_node`; it is the reason of the run's end.

    Raises:
        InputError: the reason is no text, or empty.
    """
    _progress().give_up(reason)


def critical(name: str = "saving") -> CriticalSection:
    """Name a block of code in which this worker is not to be ended, such as saving a checkpoint.

    Use as ``with worker.critical("saving"): ...``, or call its `begin` and `end`. Inside of it the agent
    ends no worker of this node for a drain, a failure elsewhere or a change of membership, until the
    block is left or its time is up (`time_left`; --critical-timeout). Blocks may lie in one another.

    Args:
        name: short; shown when the block holds something up.

    Raises:
        InputError: the name is empty or no text.
    """
    return _progress().critical(name)


def time_left() -> float | None:
    """Return the time until running workers are killed [s]; None while no stop is requested."""
    return _progress().time_left()


def checkpoint_saved(
    step: int, path: str | os.PathLike[str] | None = None, *, shards: int = 1, name: str = ""
) -> None:
    """Record that a checkpoint is durable; the next start resumes from the newest complete one.

    Call it after the file is safely on disk (see `atomic_write`), on each rank that wrote a part.

    Args:
        step: steps completed in the checkpoint.
        path: the checkpoint, a file or directory that all nodes see, handed back by
            `latest_checkpoint` as an absolute path; with several shards the directory they share.
        shards: how many ranks write a part of it; complete once as many ranks have called.
        name: of the object that is saved, where a program saves several; no one gets that of another.

    Raises:
        InputError: there is nothing at `path`, `step` is negative, or lower than that of the save before
            without `resumed` in between, `shards` is not positive, or `name` cannot be one.
        OSError: the mark could not be written.
    """
    _progress().checkpoint_saved(step, path, shards=shards, name=name)


def checkpoint_failed(step: int, *, shards: int = 1, name: str = "") -> None:
    """Take this rank's mark of a checkpoint back, as other ranks could not save theirs.

    Raises:
        OSError: it is there, and cannot be removed.
    """
    _progress().checkpoint_failed(step, shards=shards, name=name)


def latest_checkpoint(name: str = "") -> Checkpoint | None:
    """Return the checkpoint to resume from (`step`, `path`), the same on all ranks, or None.

    Args:
        name: as of `checkpoint_saved`.
    """
    return _progress().latest_checkpoint(name)


def run_dir() -> str | None:
    """Return the absolute path of the run directory, the place for checkpoints; None without a run."""
    return _progress().run_dir


def attached() -> bool:
    """Say whether an agent listens to this process."""
    return _progress().attached


def atomic_write(path: str | os.PathLike[str]) -> AtomicWrite:
    """Open a file for writing bytes that appears under its name whole or not at all.

    Use as ``with atomic_write(path) as file: torch.save(state, file)``.
    An exception inside leaves the old file, if any, untouched.

    Args:
        path: the file to create or replace; its directory must exist.

    Raises:
        InputError: `path` is no path.
    """
    return _progress().atomic_write(path)
